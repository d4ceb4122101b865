"""The paper's own recipes on ImageNet."""

from __future__ import annotations

from dataclasses import dataclass

from .recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class ResNet50ImageNet(Recipe):
    """ResNet-50, 1000 epochs, two views, a support set of 98,304: the paper's best two-view row.

    Command:   nnclr pretrain resnet50_imagenet --data IMAGENET --out RUN
    Hardware:  one process; a batch of 4096 at 224 pixels needs far more memory than one GPU of 80 GB
               has, so give --set batch_size=512 there (the learning rate follows the batch).
    Time:      estimate: a week or more on one H100 at 2,000 images/s. Not yet run by this project.
    Expected:  75.4 top-1 linear evaluation (the paper, table "Support set size", lr 0.3).
    """
