"""nnclr_hub.inspect on planted data, against scikit-learn and slow loops."""

import io

import numpy as np
import pytest
from PIL import Image, ImageFilter, ImageOps
from sklearn.manifold import trustworthiness
from sklearn.metrics import adjusted_rand_score, roc_auc_score
from sklearn.neighbors import NearestNeighbors

from nnclr_hub import inspect
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.inspect.alignment import SIDE, aligned_correlation
from nnclr_hub.inspect.neighbors import chance_level, nearest
from nnclr_hub.probe.cross_validation import out_of_fold, stratified_folds

RANDOM = np.random.default_rng(0)


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def groups():
    """Return 240 vectors in 6 groups, and the group of each."""
    random = np.random.default_rng(1)
    labels = np.repeat(np.arange(6), 40)
    return unit(random.normal(size=(6, 32))[labels] + 0.5 * random.normal(size=(240, 32))), labels


def photo(seed):
    """Return a textured 96 x 128 image."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 255, (12, 16), np.uint8)).resize((128, 96), Image.Resampling.BICUBIC)
    fine = Image.fromarray(random.integers(0, 255, (48, 64), np.uint8)).resize((128, 96), Image.Resampling.BICUBIC)
    return Image.blend(coarse, fine, 0.5)


def small(image):
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=3.0))


def test_nearest_agrees_with_scikit_learn(groups):
    vectors, _ = groups
    cosines, places = nearest(vectors, 7)
    distances, expected = NearestNeighbors(n_neighbors=8, metric="cosine").fit(vectors).kneighbors(vectors)
    assert (np.sort(places, axis=1) == np.sort(expected[:, 1:], axis=1)).mean() > 0.999
    np.testing.assert_allclose(cosines, 1 - distances[:, 1:], atol=1e-5)
    # equal vectors: never the row itself
    assert (nearest(np.tile(vectors[:1], (9, 1)), 3)[1] != np.arange(9)[:, None]).all()


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_a_map_keeps_neighbors_and_places_new_vectors(groups, method):
    vectors, labels = groups
    seen = []
    found = inspect.project(vectors, method, progress=lambda done, total: seen.append((done, total)))
    assert found.method == method
    assert found.coordinates.shape == (240, 2)
    assert found.coordinates.dtype == np.float32
    np.testing.assert_array_equal(found.coordinates, inspect.project(vectors, method).coordinates)
    trust = trustworthiness(vectors, found.coordinates, n_neighbors=12, metric="cosine")
    assert trust > {"pca": 0.7, "tsne": 0.95}[method]
    assert (seen != []) == (method == "tsne")
    placed = found.place(vectors[:5] + np.float32(1e-3))
    nearest_group = labels[np.linalg.norm(found.coordinates[None] - placed[:, None], axis=2).argmin(axis=1)]
    assert (nearest_group == labels[:5]).all()


def test_a_map_refuses_what_it_cannot_arrange(groups):
    for vectors, method in ((np.ones((1, 4)), "pca"), (groups[0], "umap"), (groups[0][:20], "tsne")):
        with pytest.raises(InvalidRequest):
            inspect.project(vectors, method)
    with pytest.raises(InvalidRequest):
        inspect.project(np.full((4, 4), np.nan))
    assert inspect.project(groups[0][:20]).method == "pca"


def test_clusters_find_the_groups_and_their_number(groups):
    vectors, labels = groups
    found = inspect.clusters(vectors)
    assert len(found.medoids) == 6
    assert adjusted_rand_score(labels, found.labels) > 0.99
    assert found.share.sum() == pytest.approx(1)
    assert (np.diff(found.share) <= 0).all()
    assert (found.labels[found.medoids] == np.arange(6)).all()
    assert len(inspect.clusters(vectors, 3).share) == 3
    for dim in (1, 2, 8):  # vectors without clusters, of which the best gap may be negative
        for count in (2, 40, 300):
            assert inspect.clusters(np.random.default_rng(dim).normal(size=(count, dim))).share.sum() == pytest.approx(
                1
            )
    with pytest.raises(InvalidRequest):
        inspect.clusters(vectors, 0)


def test_outliers_are_far_from_their_kth_neighbor(groups):
    vectors = np.concatenate([groups[0], unit(RANDOM.normal(size=(5, 32)))])
    scores = inspect.outliers(vectors)
    assert roc_auc_score(np.arange(245) >= 240, scores) > 0.95
    expected = NearestNeighbors(n_neighbors=13).fit(vectors).kneighbors(vectors)[0][:, -1]
    np.testing.assert_allclose(inspect.outliers(vectors, 12), expected, atol=1e-3)


def test_the_chance_level_is_the_quantile_of_a_power_law():
    # distances r with P(r < t) = t^8: one of n pairs is below n^(-1/8)
    for seed in range(3):
        distances = np.random.default_rng(seed).random(100_000) ** (1 / 8)
        assert 1 - chance_level(1 - distances, 1e7) == pytest.approx(1e7 ** (-1 / 8), rel=0.15)


def test_details_agree_for_versions_of_an_image_and_not_for_others():
    image = photo(0)
    versions = {
        "resized": image.resize((60, 40)),
        "mirrored": image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        "cropped": image.crop((9, 7, 121, 92)),
        "darker": image.point(lambda value: value * 0.6),
    }
    images = np.stack([small(one) for one in (image, *versions.values(), photo(1), Image.new("L", (9, 9)))])
    scores = aligned_correlation(images, np.stack([np.zeros(6, int), np.arange(1, 7)], axis=1))
    assert (scores[:4] > 0.9).all(), dict(zip(versions, scores, strict=False))
    assert (scores[4:] < 0.5).all()
    back = aligned_correlation(images, np.array([[3, 0]]))  # the crop first
    assert back[0] == pytest.approx(scores[2], abs=0.05)


def test_near_duplicates_with_small_images_have_complete_linkage():
    images = [photo(seed) for seed in range(30)]
    images += [images[0].crop((5, 5, 118, 90)), images[0].resize((64, 48)), images[1].rotate(180)]
    squashed = np.stack([small(one) for one in images])
    vectors = unit(np.stack([one.reshape(-1) - one.mean() for one in squashed.astype(float)]))
    found = inspect.near_duplicates(vectors, squashed)
    assert found.groups == ((0, 30, 31),)
    assert 0.88 <= found.threshold <= found.scores[0] <= 1
    with pytest.raises(InvalidRequest):
        inspect.near_duplicates(vectors, squashed[:-1])


def test_images_that_differ_in_color_only_are_not_duplicates():
    gray = photo(0)
    image = ImageOps.colorize(gray, "black", "orange")
    compressed = io.BytesIO()
    image.save(compressed, "JPEG", quality=40)
    versions = [image, image.crop((9, 7, 121, 92)), ImageOps.mirror(image), Image.open(compressed)]
    versions += [ImageOps.colorize(gray, "black", "violet"), gray.convert("RGB")]
    squashed = np.stack([small(one.convert("L")) for one in versions])
    cells = [one.convert("YCbCr").resize((12, 12), Image.Resampling.BOX) for one in versions]
    color = np.stack([np.asarray(one)[..., 1:] for one in cells])
    vectors = unit(np.random.default_rng(2).normal(size=(6, 8)))
    assert inspect.near_duplicates(vectors, squashed, threshold=0.88).groups == ((0, 1, 2, 3, 4, 5),)
    assert inspect.near_duplicates(vectors, squashed, color, threshold=0.88).groups == ((0, 1, 2, 3),)
    with pytest.raises(InvalidRequest):
        inspect.near_duplicates(vectors, squashed, color[..., 0])


def test_near_duplicates_by_vectors_do_not_chain():
    # a chain on the circle: neighbors are alike, ends are not
    angle = np.radians(np.arange(0, 50, 10))
    chain = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    found = inspect.near_duplicates(chain, threshold=np.cos(np.radians(15)))
    assert sorted(len(group) for group in found.groups) == [2, 2]
    cosine = chain @ chain.T
    assert all(cosine[a, b] >= found.threshold for group in found.groups for a in group for b in group)


def test_near_duplicates_by_vectors_are_calibrated_on_random_pairs():
    random = np.random.default_rng(3)
    vectors = unit(random.normal(size=(20, 16))[random.integers(0, 20, 600)] + random.normal(size=(600, 16)))
    copies = unit(vectors[:25] + 0.02 * random.normal(size=(25, 16)))
    found = inspect.near_duplicates(np.concatenate([vectors, copies]))
    pairs = {(a, b) for group in found.groups for a in group for b in group if a < b}
    planted = {(i, 600 + i) for i in range(25)}
    assert len(pairs & planted) >= 23
    assert len(pairs - planted) <= 2


def test_equal_values_and_leaks():
    assert inspect.equal_values("abcd", ["x", None, "x", None]) == [("a", "c")]
    parts = ["train", "test", "train", "", "test"]
    leaks = inspect.find_leaks([((0, 1), 0.9), ((0, 2), 1.0), ((1, 2, 3, 4), 1.0)], parts)
    assert [(one.items, one.score) for one in leaks] == [((1, 2, 4), 1.0), ((0, 1), 0.9)]
    assert leaks[0].parts == ("test", "train", "test")


def test_out_of_fold_predictions_come_from_other_rows(groups):
    vectors, labels = groups
    fold = stratified_folds(labels)
    assert all(np.bincount(fold[labels == one], minlength=5).tolist() == [8] * 5 for one in range(6))
    for classifier in ("linear", "knn"):
        found = out_of_fold(vectors, labels, classifier=classifier)
        assert found.right.mean() > 0.98
        np.testing.assert_allclose(found.probabilities.sum(axis=1), 1, atol=1e-5)
        # labels that say nothing cannot be learned, however well they are memorized
        noise = np.random.default_rng(0).integers(0, 6, 240)
        assert out_of_fold(vectors, noise, classifier=classifier).right.mean() < 0.35
    with pytest.raises(InvalidRequest):
        out_of_fold(vectors, np.zeros(240, np.int64))


@pytest.mark.parametrize("classifier", ["linear", "knn"])
def test_out_of_fold_predictions_do_not_depend_on_the_order_of_rows(groups, classifier):
    vectors, labels = groups
    labels = np.where(np.arange(240) % 10 == 0, (labels + 1) % 6, labels)  # so that predictions are uncertain
    found = out_of_fold(vectors, labels, classifier=classifier)
    for order in (np.arange(240)[::-1], np.random.default_rng(3).permutation(240)):
        shuffled = out_of_fold(vectors[order], labels[order], classifier=classifier)
        assert np.array_equal(shuffled.probabilities, found.probabilities[order])
        assert np.array_equal(shuffled.right, found.right[order])


def test_suspect_labels_are_the_flipped_ones(groups):
    vectors, labels = groups
    flipped = np.random.default_rng(2).permutation(240)[:12]
    given = labels.copy()
    given[flipped] = (given[flipped] + 1) % 6
    probabilities = out_of_fold(vectors, given).probabilities
    found = inspect.suspect_labels(probabilities, given)
    assert set(found.order[:12]) == set(flipped)
    assert (found.proposed[flipped] == labels[flipped]).all()
    assert set(np.flatnonzero(found.issue)) == set(flipped)
    given[0] = 6  # the only row of a class that no classifier knows
    alone = inspect.suspect_labels(np.pad(probabilities, ((0, 0), (0, 1))), given)
    assert (alone.score[0], alone.issue[0]) == (0, False)
    with pytest.raises(InvalidRequest):
        inspect.suspect_labels(probabilities, given + 6)


@pytest.mark.parametrize("noise", [0.0, 0.08])
@pytest.mark.parametrize("weak", [1.0, 4.0])
def test_a_weak_classifier_does_not_make_labels_suspect(noise, weak):
    # labels are drawn from the probabilities themselves, so that all mistakes are the classifier's but for the noise
    random = np.random.default_rng(5)
    scores = random.normal(size=(4000, 8)) * weak
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    labels = (random.random((4000, 1)) > probabilities.cumsum(axis=1)).sum(axis=1).clip(0, 7)
    wrong = random.random(4000) < noise
    labels[wrong] = (labels[wrong] + random.integers(1, 8, wrong.sum())) % 8
    # confidence in all of its guesses, as wrong labels make it look: the share of wrong labels is found nevertheless
    flat = probabilities**0.8 / (probabilities**0.8).sum(axis=1, keepdims=True)
    found = inspect.suspect_labels(flat.astype(np.float32), labels)
    assert found.issue.sum() <= 4000 * noise + 20
    if weak > 1:  # else the labels say too little about the share
        assert found.noise == pytest.approx(noise, abs=0.025)
    if noise and weak > 1:
        assert wrong[found.issue].mean() > 0.6
        assert found.issue[wrong].mean() > 0.3


def test_class_overlap_counts_both_directions():
    labels, predicted = np.array([0, 0, 1, 1, 2, 2, 2, 2]), np.array([1, 0, 0, 1, 2, 2, 2, 0])
    found = inspect.class_overlap(predicted, labels)
    assert [(one.first, one.second, one.confused, one.share) for one in found] == [(0, 1, 2, 0.5), (0, 2, 1, 1 / 6)]


def test_label_next_covers_groups_and_prefers_uncertain_rows(groups):
    vectors, labels = groups
    chosen = inspect.what_to_label_next(vectors, 6)
    assert len(set(labels[chosen])) == 6
    centered = unit(vectors - vectors.mean(axis=0))
    similar = np.exp((centered @ centered.T - 1) / 0.3)
    for i, row in enumerate(chosen):  # each row adds most to those before it
        sums = [similar[:, [*chosen[:i], other]].max(axis=1).sum() for other in range(240)]
        assert sums[row] == pytest.approx(max(sums))
    labeled = labels < 4  # the other groups come first
    assert set(labels[inspect.what_to_label_next(vectors, 2, labeled=labeled)]) == {4, 5}
    probabilities = np.full((240, 2), [0.9, 0.1])
    probabilities[::2] = 0.5
    assert (inspect.what_to_label_next(vectors, 6, probabilities=probabilities) % 2 == 0).all()
    with pytest.raises(InvalidRequest):
        inspect.what_to_label_next(vectors, 0)


def test_image_facts_name_the_problems():
    def problems(image):
        return inspect.image_facts(np.asarray(image), image.width, image.height).problems

    assert problems(photo(0)) == ()
    assert problems(photo(0).filter(ImageFilter.GaussianBlur(4))) == ("blurred",)
    assert problems(Image.new("L", (64, 64), 128)) == ("empty",)
    assert problems(photo(0).point(lambda value: value // 16)) == ("dark", "blurred")
    assert problems(photo(0).resize((300, 30))) == ("odd_aspect", "tiny")
