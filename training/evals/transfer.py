"""The paper's transfer sets, with what it reports on each ("Transfer learning evaluations").

Eleven can be fetched by name; Birdsnap, and Cars where its download is gone, are given as folders of that name with
train/ and test/. The splits are torchvision's, which are the authors'; SUN397 and Caltech-101 come without, and are
divided as BYOL says (50 and 30 images a class to train on), by a draw of our own.
"""

SETS = {
    "food101": "top1",
    "cifar10": "top1",
    "cifar100": "top1",
    "birdsnap": "top1",
    "sun397": "top1",
    "cars": "top1",
    "aircraft": "mean_per_class",
    "voc2007": "map11",
    "dtd": "top1",
    "pets": "mean_per_class",
    "caltech101": "mean_per_class",
    "flowers": "mean_per_class",
}
