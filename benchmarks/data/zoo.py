"""Every training step of the measured sets that is rebuilt here, by name.

Image networks of timm's names come from transformers' configurations (random weights) or from
`vision`, the others from `other`. Where a rebuilt network differs from the measured one in detail
(a head, a normalisation's place), the residual of the fit carries it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.data import other, vision

Batch = Callable[[int], Any]


@dataclass(frozen=True)
class Entry:
    """One model: how to make it, a batch of it, its loss, the batch sizes to capture.

    Two batch sizes are enough for any other: every count is affine in the batch.
    """

    make: Callable[[], nn.Module]
    batch: Batch
    batches: tuple[int, ...]
    precisions: tuple[str, ...] = ("32-true",)
    optimizer: str = "adam"
    loss: Callable[..., Any] | None = nn.functional.cross_entropy
    step: Callable[[nn.Module, Any], Any] | None = None


def images(size: int) -> Batch:
    def make(count: int) -> Any:
        return torch.empty(count, 3, size, size), torch.zeros(count, dtype=torch.int64)

    return make


def _logits(module: nn.Module, batch: Any) -> Any:
    return nn.functional.cross_entropy(module(pixel_values=batch[0]).logits, batch[1])


def _own(make: Callable[[], nn.Module], size: int, *batches: int, **more: Any) -> Entry:
    return Entry(make, images(size), batches, **more)


_BOTH = ("32-true", "16-mixed")


def _sets() -> dict[str, Entry]:
    """The models that a set names by hand, at exactly the batch sizes that it measured."""
    lucid = {"precisions": _BOTH}
    three = (32, 64, 128)

    def sequence(make: Callable[[], nn.Module], length: int, batches: tuple[int, ...]) -> Entry:
        def batch(count: int) -> Any:
            return (
                torch.zeros(length, count, dtype=torch.int64),
                torch.zeros(length * count, dtype=torch.int64),
            )

        return Entry(make, batch, batches, _BOTH, "sgd")

    def translation(batches: tuple[int, ...]) -> Entry:
        def batch(count: int) -> Any:
            return (
                torch.zeros(count, 32, dtype=torch.int64),
                torch.zeros(32 * count, dtype=torch.int64),
            )

        return Entry(other.Translation, batch, batches)

    def question(module: nn.Module, batch: Any) -> Any:
        return module(**batch).loss

    def spans(count: int) -> Any:
        zeros = torch.zeros(count, dtype=torch.int64)
        tokens = torch.zeros(count, 384, dtype=torch.int64)
        return {"input_ids": tokens, "start_positions": zeros, "end_positions": zeros}

    def vector(inputs: int, outputs: int) -> Entry:
        def batch(count: int) -> Any:
            return torch.empty(count, inputs), torch.empty(count, outputs)

        return Entry(
            lambda: other.policy(inputs, outputs),
            batch,
            three,
            loss=nn.functional.mse_loss,
        )

    def points(count: int) -> Any:
        return torch.empty(count, 3, 2500), torch.zeros(count, dtype=torch.int64)

    def pairs(count: int) -> Any:
        return torch.zeros(count, 2, dtype=torch.int64), torch.zeros(count, 1)

    def rows(count: int) -> Any:
        return torch.empty(count, 20108), torch.empty(count, 20108)

    def made(module: nn.Module, batch: Any) -> Any:
        return module(batch)

    return {
        "lucid/BERT": Entry(
            lambda: transformers.BertForQuestionAnswering(transformers.BertConfig()),
            spans,
            (32,),
            _BOTH,
            step=question,
        ),
        "lucid/DCGAN": Entry(
            other.DCGAN, lambda count: torch.empty(count, 3, 64, 64), three, _BOTH, step=made
        ),
        "lucid/EfficientNet": _own(
            lambda: vision.efficientnet_b0(10, small=True), 32, *three, **lucid
        ),
        "lucid/LSTM": sequence(lambda: other.LanguageModel(width=650), 35, (64, 128)),
        "lucid/MobileNetV2": _own(lambda: vision.mobilenet_v2(10, small=True), 32, *three, **lucid),
        "lucid/MobileNetV3": _own(vision.mobilenet_v3_small, 224, *three, **lucid),
        "lucid/NeuMF": Entry(other.NeuMF, pairs, (64, 128), _BOTH, loss=nn.functional.mse_loss),
        "lucid/PPO": vector(8, 4),
        "lucid/PointNet": Entry(other.PointNet, points, three, _BOTH),
        "lucid/ResNet18": _own(lambda: vision.resnet(18, 10, small=True), 32, *three, **lucid),
        "lucid/ResNet50": _own(lambda: vision.resnet(50), 224, *three, **lucid),
        "lucid/TD3": vector(24, 4),
        "lucid/Transformer": translation((32, 64)),
        "lucid/VGG": _own(lambda: vision.vgg(11, 10, norm=True, small=True), 32, *three, **lucid),
        "gavel/ResNet-18": _own(
            lambda: vision.resnet(18, 10, small=True), 32, 16, 32, 64, 128, 256, optimizer="sgd"
        ),
        "gavel/ResNet-50": _own(lambda: vision.resnet(50), 224, 16, 32, 64, 128, optimizer="sgd"),
        "gavel/Transformer": translation((16, 32, 64, 128, 256)),
        "gavel/LM": Entry(
            lambda: other.LanguageModel(width=200),
            sequence(other.LanguageModel, 35, ()).batch,
            (5, 10, 20, 40, 80),
            optimizer="sgd",
        ),
        "gavel/Recommendation": Entry(
            other.Recommendation,
            rows,
            (512, 1024, 2048, 4096, 8192),
            loss=nn.functional.mse_loss,
        ),
        "memory/vgg16": _own(lambda: vision.vgg(16), 224, *three),
        "memory/resnet50": _own(lambda: vision.resnet(50), 224, *three),
        "memory/efficientnet": _own(vision.efficientnet_b0, 224, *three),
        "memory/inception": _own(vision.inception_v3, 299, *three),
        "memory/resnet18_cifar100": _own(lambda: vision.resnet(18, 100), 32, *three),
        "memory/mobilenet_cifar100": _own(lambda: vision.mobilenet_v3_small(100), 32, *three),
        "memory/efficientnet_cifar100": _own(lambda: vision.efficientnet_b0(100), 32, *three),
    }


def _timm(kind: str, size: int, **settings: Any) -> Entry:
    def make() -> nn.Module:
        config = getattr(transformers, f"{kind}Config")(num_labels=1000, **settings)
        config._attn_implementation = "sdpa" if kind in ("ViT", "DeiT") else "eager"
        module: nn.Module = getattr(transformers, f"{kind}ForImageClassification")(config)
        return module

    return Entry(make, images(size), (8, 32), _BOTH, step=_logits)


_WIDTHS = {
    "tiny": {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768},
    "small": {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536},
    "base": {},
}
_LARGE = {
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
}


def _timm_models() -> dict[str, Entry]:
    """Networks that the timm sets measured and transformers, or `vision`, can rebuild."""
    found: dict[str, Entry] = {
        f"resnet{depth}": Entry(
            lambda depth=depth: vision.resnet(depth), images(224), (8, 32), _BOTH
        )
        for depth in (18, 34, 50, 101, 152)
    }
    found["mobilenetv2_100"] = Entry(vision.mobilenet_v2, images(224), (8, 32), _BOTH)
    found["mobilenetv3_small_100"] = Entry(vision.mobilenet_v3_small, images(224), (8, 32), _BOTH)
    found["efficientnet_b0"] = Entry(vision.efficientnet_b0, images(224), (8, 32), _BOTH)
    for name, width, depth, size in (
        ("b1", 1.0, 1.1, 256),
        ("b2", 1.1, 1.2, 256),
        ("b3", 1.2, 1.4, 288),
        ("b4", 1.4, 1.8, 320),
    ):
        found[f"efficientnet_{name}"] = _timm(
            "EfficientNet", size, width_coefficient=width, depth_coefficient=depth,
            hidden_dim=int(1280 * width), image_size=size,
        )  # fmt: skip
    for name, width in _WIDTHS.items():
        found[f"deit_{name}_patch16_224"] = _timm("ViT", 224, **width)
    found["deit_base_patch16_384"] = _timm("ViT", 384, image_size=384)
    found["deit3_large_patch16_224"] = _timm("ViT", 224, **_LARGE)
    found["beit_base_patch16_224"] = _timm("Beit", 224, use_relative_position_bias=True)
    found["beit_large_patch16_224"] = _timm("Beit", 224, use_relative_position_bias=True, **_LARGE)
    for name, width, depths, heads in (
        ("tiny", 96, [2, 2, 6, 2], [3, 6, 12, 24]),
        ("small", 96, [2, 2, 18, 2], [3, 6, 12, 24]),
        ("base", 128, [2, 2, 18, 2], [4, 8, 16, 32]),
    ):
        found[f"swin_{name}_patch4_window7_224"] = _timm(
            "Swin", 224, embed_dim=width, depths=depths, num_heads=heads
        )
        found[f"swinv2_{name}_window8_256"] = _timm(
            "Swinv2", 256, image_size=256, window_size=8, embed_dim=width, depths=depths,
            num_heads=heads,
        )  # fmt: skip
    for name, widths, depths in (
        ("nano", [80, 160, 320, 640], [2, 2, 8, 2]),
        ("tiny", [96, 192, 384, 768], [3, 3, 9, 3]),
        ("small", [96, 192, 384, 768], [3, 3, 27, 3]),
        ("base", [128, 256, 512, 1024], [3, 3, 27, 3]),
    ):
        found[f"convnext_{name}"] = _timm("ConvNext", 224, hidden_sizes=widths, depths=depths)
    for name, widths, depths, group in (
        ("004", [48, 104, 208, 440], [1, 3, 6, 6], 8),
        ("016", [48, 120, 336, 888], [2, 6, 17, 2], 24),
        ("040", [128, 192, 512, 1088], [2, 6, 12, 2], 64),
        ("080", [168, 448, 896, 2016], [2, 4, 10, 1], 56),
    ):
        found[f"regnety_{name}"] = _timm(
            "RegNet", 224, hidden_sizes=widths, depths=depths, groups_width=group
        )
    for name, depths in (("s12", [2, 2, 6, 2]), ("s24", [4, 4, 12, 4]), ("s36", [6, 6, 18, 6])):
        found[f"poolformer_{name}"] = _timm("PoolFormer", 224, depths=depths)
    found["mobilevit_s"] = _timm("MobileViT", 256)
    found["mobilevit_xs"] = _timm(
        "MobileViT", 256, hidden_sizes=[96, 120, 144],
        neck_hidden_sizes=[16, 32, 48, 64, 80, 96, 384],
    )  # fmt: skip
    found["pvt_v2_b0"] = _timm("PvtV2", 224)
    found["pvt_v2_b2"] = _timm("PvtV2", 224, hidden_sizes=[64, 128, 320, 512], depths=[3, 4, 6, 3])
    found["mobilenetv1_100"] = _timm("MobileNetV1", 224)
    return {f"timm/{name}": entry for name, entry in found.items()}


def zoo() -> dict[str, Entry]:
    """All entries by "set/model"."""
    return {**_sets(), **_timm_models()}
