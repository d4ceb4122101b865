"""nnclr store create, export, reembed, duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnclr_hub.cli.index import list_broken, place_of
from nnclr_hub.cli.place import Place, on_store
from nnclr_hub.cli.stores import Name
from nnclr_hub.cli.verbs import (
    Json,
    Model,
    chosen_model,
    err,
    loaded_encoder,
    out,
    parse_numbers,
    print_json,
)
from nnclr_hub.errors import InvalidRequest

if TYPE_CHECKING:
    from nnclr_hub.store.base import Collection

SHOWN = 20  # groups of duplicates that are printed before they are only counted
CHUNK = 500


def register(group: typer.Typer) -> None:
    """Add the verbs."""
    for verb in (create, export, reembed, duplicates):
        group.command()(on_store(verb))


def create(
    name: Annotated[str, typer.Argument(help="Name of the new collection.")],
    model: Model = None,
    dim: Annotated[int | None, typer.Option(help="Length of the vectors, for a collection without a model.")] = None,
    metric: Annotated[str, typer.Option(help="cosine, dot or l2.")] = "cosine",
    index: Annotated[str, typer.Option(help="auto, flat, hnsw, ivf, ivf_sq8, ivf_pq; on Milvus diskann.")] = "auto",
    precision: Annotated[str, typer.Option(help="f32, or f16 for half the space.")] = "f32",
    vectors: Annotated[
        str,
        typer.Option(
            help="What searches compare: raw (vectors as they are), center, half_whiten or whiten. auto: "
            "half_whiten, if of a model."
        ),
    ] = "auto",
    indexed: Annotated[
        list[str] | None, typer.Option(help="Metadata key for fast filters. Repeatable. Default: label.")
    ] = None,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Create an empty collection with options that `nnclr index` and `import` would set to defaults.

    Example: nnclr store create photos --precision f16 --indexed label --indexed path
    """
    from nnclr_hub.client import Client
    from nnclr_hub.store.base import CollectionSpec
    from nnclr_hub.store.checks import check_collection_name
    from nnclr_hub.store.where import check_key

    if model is not None and dim is not None:
        raise InvalidRequest("Give --model or --dim, not both; a model determines the length of its vectors.")
    # errors must not leave an empty store behind
    check_collection_name(name)
    for key in indexed or ():
        check_key(key)
    chosen: dict[str, Any] = {"metric": metric, "index": index, "precision": precision, "vectors": vectors}
    if indexed is not None:
        chosen["indexed"] = tuple(indexed)
    made: Any = None
    if place.server is None:
        made = replace(CollectionSpec(dim) if dim is not None else CollectionSpec.of(loaded_encoder(model)), **chosen)
    with place.bench(create=True) as bench:
        bench.store.refuse_taken(name)  # a server accepts the same specification again
        spec = (
            bench.collections.create(name, model=model, dim=dim, **chosen)
            if isinstance(bench, Client)
            else bench.store.create(name, made)
        ).spec
    if as_json:
        print_json({"name": name, **asdict(spec)})
        return
    by = f" by {spec.model}" if spec.model else ""
    out.print(f"Created {name}: vectors of length {spec.dim}{by}, {metric}, {precision}, {spec.vectors}.")


def export(
    name: Name,
    folder: Annotated[Path, typer.Argument(help="Folder to write; must not exist.")],
    thumbnails: Annotated[bool, typer.Option("--thumbnails/--no-thumbnails", help="Include thumbnails.")] = True,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Export a collection as Parquet and safetensors files. Works while a server uses the store.

    Example: nnclr store export photos photos-export
    """
    from nnclr_hub.progress import bar
    from nnclr_hub.store.exchange import export_collection

    with place.opened(read_only=True) as there, bar(err, "exporting", unit="items") as advance:
        manifest = export_collection(there.get(name), folder, thumbnails=thumbnails, progress=advance)
    if as_json:
        print_json({"folder": str(folder), **asdict(manifest), "bytes": manifest.size})
        return
    out.print(f"{folder}: {manifest.items} items of {name}, {manifest.size / 1e6:.1f} MB")


def reembed(
    name: Name,
    model: Annotated[
        str | None,
        typer.Option("--model", help="The new encoder, as in `nnclr models`; with --server, one that it serves."),
    ] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out items whose file is missing or changed.")
    ] = False,
    writes_stopped: Annotated[
        bool, typer.Option("--writes-stopped", help="Nothing else writes to it now; required on Milvus.")
    ] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Cancel: drop what was built so far.")] = False,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Embed a collection again with another encoder, from its images. Run it again to continue after an interruption.

    With --server, the server reads the images, and names at most 100 of the items that are left out.

    Example: nnclr store reembed photos --model runs/my/encoder
    """
    from nnclr_hub.progress import bar
    from nnclr_hub.workbench.reembedding import ReembedRequest

    if abandon == (model is not None):
        raise InvalidRequest("Name the new encoder with --model, or cancel with --abandon.")
    with place.bench(model) as bench:
        if model is None:
            bench.abandon_reembed(name)
            out.print(f"{name} has no unfinished copy now; it was not changed.")
            return
        with bar(err, "embedding") as advance:
            if place.server is None:
                bench.store.get(name)
                chosen_model(model)  # before torch is imported
            request = ReembedRequest(name, model, skip_missing, writes_stopped)
            report = bench.run("reembed", request, advance)
    if as_json:
        print_json({"name": name, "model": model, **report})
        return
    left_out = report["left_out_count"]
    list_broken([(one["item"], f"left out: {one['reason']}") for one in report["left_out"]], left_out)
    if report["collection"] is None:
        out.print(f"{name} already holds vectors of {model}; nothing to do.")
        return
    kept = report["kept"]
    out.print(
        f"{name}: {report['items']} items by {model} ({report['embedded']} embedded now, {left_out} left out). "
        f"The old collection is kept as {kept}; `nnclr store drop {kept}{place.words}` deletes it.",
    )


def duplicates(
    name: Name,
    near: Annotated[
        str | None,
        typer.Option("--near", help="Lowest score of a pair, or auto: above chance here. Default: equal pixels."),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="With --near: compare every pair; slow for large collections.")
    ] = False,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """List duplicate images: with equal pixels, or nearly equal. Works while a server uses the store.

    At most 10,000 groups and 1,000 items of each are listed; with --server, only the name of the indexed folder.

    Example: nnclr store duplicates photos --near auto
    """
    from nnclr_hub.progress import bar
    from nnclr_hub.store.checks import MAX_LIMIT
    from nnclr_hub.workbench.duplicates import DuplicatesRequest
    from nnclr_hub.workbench.metadata_keys import PIXEL_HASH

    if exact and near is None:
        raise InvalidRequest("--exact needs --near SCORE; without it, pixels are compared exactly anyway.")
    threshold: Any = near if near in (None, "auto") else parse_numbers("--near", near, "SCORE or auto")[0]
    with place.bench(read_only=True) as bench, bar(err, "comparing", unit="items") as advance:
        collection = bench.collection(name)
        request = DuplicatesRequest(name, threshold, exact=exact, limit=MAX_LIMIT if as_json else SHOWN)
        found = bench.run("duplicates", request, advance)
        unknown = collection.count({"must_not": [{"key": PIXEL_HASH, "exists": True}]}) if near is None else 0
        groups = _named(collection, [one["ids"] for one in found["groups"]])
    counts = {"found": found["found"], "surplus": found["surplus"]}
    if as_json:
        named = [[{"id": one.id, "path": one.path} for one in group] for group in groups]
        print_json({"collection": name, **counts, "groups": named, "without_hash": unknown})
        return
    _print_groups(groups, [one["size"] for one in found["groups"]])
    more = f", of which {SHOWN} are shown (--json has more)" if counts["found"] > SHOWN else ""
    out.print(f"{counts['found']} groups with {sum(counts.values())} items{more}")
    if unknown:
        err.print(
            f"{unknown} items have no pixel hash and were not compared; use --near 0.999 to compare their vectors.",
            style="yellow",
            soft_wrap=True,
        )


@dataclass(frozen=True)
class _Named:
    """An item with the folder that it was indexed from and its path there; or "" and its id."""

    id: str
    root: str
    relative: str

    @property
    def path(self) -> str:
        return str(Path(self.root, self.relative))


def _named(collection: Collection, groups: Sequence[Sequence[str]]) -> list[list[_Named]]:
    ids = [id for group in groups for id in group]
    found: dict[str, _Named] = {}
    for start in range(0, len(ids), CHUNK):
        for item in collection.get(ids[start : start + CHUNK]):
            found[item.id] = _Named(item.id, *place_of(item.id, item.metadata))
    return [[found[id] for id in group if id in found] for group in groups]  # an item may just have been deleted


def _print_groups(groups: Sequence[Sequence[_Named]], sizes: Sequence[int]) -> None:
    """Print each group: the count, then the files, relative to their folder if all share it."""
    roots = {one.root for group in groups for one in group}
    shared = roots.pop() if len(roots) == 1 else ""
    if shared:
        out.print(f"In {shared}:\n")
    for group, size in zip(groups, sizes, strict=True):
        files = [f"  {one.relative if shared else one.path}\n" for one in group]
        more = f"  and {size - len(group)} more\n" if size > len(group) else ""
        out.print(f"{size} alike:\n{''.join(files)}{more}")
