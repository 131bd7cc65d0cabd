"""Image networks that the measured sets name, rebuilt from their papers with random weights.

`width` and `small` follow the sets: `small` is the variant for 32-pixel images, with a stem that
does not shrink them.
"""

from __future__ import annotations

import torch
from torch import nn


def conv_norm(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, padding: int = -1
) -> list[nn.Module]:
    """A convolution without bias and its batch norm."""
    padding = kernel // 2 if padding < 0 else padding
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]


class Residual(nn.Module):
    """A branch added to a shortcut."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut
        self.last = last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.branch(x) + self.shortcut(x))


def resnet(depth: int, classes: int = 1000, small: bool = False) -> nn.Module:
    """ResNet-18/34/50/101/152 (He et al., 2016)."""
    counts = {
        18: (2, 2, 2, 2),
        34: (3, 4, 6, 3),
        50: (3, 4, 6, 3),
        101: (3, 4, 23, 3),
        152: (3, 8, 36, 3),
    }[depth]
    wide = 4 if depth >= 50 else 1
    layers: list[nn.Module] = (
        [*conv_norm(3, 64, 3), nn.ReLU(inplace=True)]
        if small
        else [*conv_norm(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    )
    inputs = 64
    for stage, count in enumerate(counts):
        width = 64 * 2**stage
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            outputs = width * wide
            relu = nn.ReLU(inplace=True)
            if wide == 4:
                branch = nn.Sequential(
                    *conv_norm(inputs, width, 1),
                    relu,
                    *conv_norm(width, width, 3, stride),
                    relu,
                    *conv_norm(width, outputs, 1),
                )
            else:
                branch = nn.Sequential(
                    *conv_norm(inputs, width, 3, stride), relu, *conv_norm(width, outputs, 3)
                )
            shortcut: nn.Module = nn.Identity()
            if stride != 1 or inputs != outputs:
                shortcut = nn.Sequential(*conv_norm(inputs, outputs, 1, stride))
            layers.append(Residual(branch, shortcut, nn.ReLU(inplace=True)))
            inputs = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
    return nn.Sequential(*layers)


def vgg(depth: int, classes: int = 1000, norm: bool = False, small: bool = False) -> nn.Module:
    """VGG-11/13/16/19 (Simonyan and Zisserman, 2015)."""
    counts = {
        11: (1, 1, 2, 2, 2),
        13: (2, 2, 2, 2, 2),
        16: (2, 2, 3, 3, 3),
        19: (2, 2, 4, 4, 4),
    }[depth]
    layers: list[nn.Module] = []
    inputs = 3
    for stage, count in enumerate(counts):
        for _ in range(count):
            outputs = min(512, 64 * 2**stage)
            layers.append(nn.Conv2d(inputs, outputs, 3, padding=1))
            layers += [nn.BatchNorm2d(outputs)] if norm else []
            layers.append(nn.ReLU(inplace=True))
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    if small:
        layers += [nn.Flatten(), nn.Linear(512, classes)]
    else:
        layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
        for size in (512 * 49, 4096):
            layers += [nn.Linear(size, 4096), nn.ReLU(inplace=True), nn.Dropout()]
        layers.append(nn.Linear(4096, classes))
    return nn.Sequential(*layers)


def mobilenet_v2(classes: int = 1000, small: bool = False) -> nn.Module:
    """MobileNetV2 (Sandler et al., 2018); `small`: stem and first stages keep the size."""
    plan = (
        (1, 16, 1, 1),
        (6, 24, 2, 1 if small else 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    layers = [*conv_norm(3, 32, 3, 1 if small else 2), nn.ReLU6(inplace=True)]
    inputs = 32
    for expand, outputs, count, first in plan:
        for block in range(count):
            stride = first if block == 0 else 1
            hidden = inputs * expand
            branch: list[nn.Module] = []
            if expand != 1:
                branch += [*conv_norm(inputs, hidden, 1), nn.ReLU6(inplace=True)]
            branch += [*conv_norm(hidden, hidden, 3, stride, hidden), nn.ReLU6(inplace=True)]
            branch += conv_norm(hidden, outputs, 1)
            body = nn.Sequential(*branch)
            same = stride == 1 and inputs == outputs
            layers.append(Residual(body, nn.Identity(), nn.Identity()) if same else body)
            inputs = outputs
    layers += [*conv_norm(inputs, 1280, 1), nn.ReLU6(inplace=True)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, classes)]
    return nn.Sequential(*layers)


class SqueezeExcite(nn.Module):
    """Channel attention (Hu et al., 2018)."""

    def __init__(self, channels: int, hidden: int, gate: nn.Module) -> None:
        super().__init__()
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, hidden, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(hidden, channels, 1),
            gate,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale(x)


def mobilenet_v3_small(classes: int = 1000) -> nn.Module:
    """MobileNetV3-Small (Howard et al., 2019)."""
    plan = (
        (3, 16, 16, True, False, 2),
        (3, 72, 24, False, False, 2),
        (3, 88, 24, False, False, 1),
        (5, 96, 40, True, True, 2),
        (5, 240, 40, True, True, 1),
        (5, 240, 40, True, True, 1),
        (5, 120, 48, True, True, 1),
        (5, 144, 48, True, True, 1),
        (5, 288, 96, True, True, 2),
        (5, 576, 96, True, True, 1),
        (5, 576, 96, True, True, 1),
    )
    layers = [*conv_norm(3, 16, 3, 2), nn.Hardswish(inplace=True)]
    inputs = 16
    for kernel, hidden, outputs, excite, swish, stride in plan:
        activation = nn.Hardswish if swish else nn.ReLU
        branch: list[nn.Module] = []
        if hidden != inputs:
            branch += [*conv_norm(inputs, hidden, 1), activation(inplace=True)]
        branch += [*conv_norm(hidden, hidden, kernel, stride, hidden), activation(inplace=True)]
        if excite:
            branch.append(SqueezeExcite(hidden, max(8, hidden // 4), nn.Hardsigmoid()))
        branch += conv_norm(hidden, outputs, 1)
        body = nn.Sequential(*branch)
        same = stride == 1 and inputs == outputs
        layers.append(Residual(body, nn.Identity(), nn.Identity()) if same else body)
        inputs = outputs
    layers += [*conv_norm(inputs, 576, 1), nn.Hardswish(inplace=True), nn.AdaptiveAvgPool2d(1)]
    layers += [nn.Flatten(), nn.Linear(576, 1024), nn.Hardswish(inplace=True)]
    layers += [nn.Dropout(0.2), nn.Linear(1024, classes)]
    return nn.Sequential(*layers)


def efficientnet_b0(classes: int = 1000, small: bool = False) -> nn.Module:
    """EfficientNet-B0 (Tan and Le, 2019); `small`: the stem keeps the size."""
    plan = (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )
    layers = [*conv_norm(3, 32, 3, 1 if small else 2), nn.SiLU(inplace=True)]
    inputs = 32
    for expand, outputs, count, first, kernel in plan:
        for block in range(count):
            stride = first if block == 0 else 1
            hidden = inputs * expand
            branch: list[nn.Module] = []
            if expand != 1:
                branch += [*conv_norm(inputs, hidden, 1), nn.SiLU(inplace=True)]
            branch += [*conv_norm(hidden, hidden, kernel, stride, hidden), nn.SiLU(inplace=True)]
            branch.append(SqueezeExcite(hidden, max(1, inputs // 4), nn.Sigmoid()))
            branch += conv_norm(hidden, outputs, 1)
            body = nn.Sequential(*branch)
            same = stride == 1 and inputs == outputs
            layers.append(Residual(body, nn.Identity(), nn.Identity()) if same else body)
            inputs = outputs
    layers += [*conv_norm(inputs, 1280, 1), nn.SiLU(inplace=True), nn.AdaptiveAvgPool2d(1)]
    layers += [nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, classes)]
    return nn.Sequential(*layers)


class Branches(nn.Module):
    """Parallel branches, concatenated (Inception)."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _unit(inputs: int, outputs: int, kernel: tuple[int, int], stride: int = 1) -> nn.Module:
    padding = (kernel[0] // 2, kernel[1] // 2) if stride == 1 else 0
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def _chain(inputs: int, *plan: tuple[int, tuple[int, int], int]) -> nn.Module:
    layers = []
    for outputs, kernel, stride in plan:
        layers.append(_unit(inputs, outputs, kernel, stride))
        inputs = outputs
    return nn.Sequential(*layers)


def inception_v3(classes: int = 1000) -> nn.Module:
    """Inception v3 (Szegedy et al., 2016) without its auxiliary head, for 299-pixel images."""
    one, three, five, row, column = (1, 1), (3, 3), (5, 5), (1, 7), (7, 1)
    layers: list[nn.Module] = [
        _unit(3, 32, three, 2),
        nn.Sequential(nn.Conv2d(32, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(True)),
        _unit(32, 64, three),
        nn.MaxPool2d(3, 2),
        _unit(64, 80, one),
        nn.Sequential(nn.Conv2d(80, 192, 3, bias=False), nn.BatchNorm2d(192), nn.ReLU(True)),
        nn.MaxPool2d(3, 2),
    ]
    inputs = 192
    for pooled in (32, 64, 64):
        layers.append(
            Branches(
                _unit(inputs, 64, one),
                _chain(inputs, (48, one, 1), (64, five, 1)),
                _chain(inputs, (64, one, 1), (96, three, 1), (96, three, 1)),
                nn.Sequential(nn.AvgPool2d(3, 1, 1), _unit(inputs, pooled, one)),
            )
        )
        inputs = 224 + pooled
    layers.append(
        Branches(
            _unit(inputs, 384, three, 2),
            _chain(inputs, (64, one, 1), (96, three, 1), (96, three, 2)),
            nn.MaxPool2d(3, 2),
        )
    )
    inputs = 480 + inputs
    for width in (128, 160, 160, 192):
        layers.append(
            Branches(
                _unit(inputs, 192, one),
                _chain(inputs, (width, one, 1), (width, row, 1), (192, column, 1)),
                _chain(
                    inputs,
                    (width, one, 1),
                    (width, column, 1),
                    (width, row, 1),
                    (width, column, 1),
                    (192, row, 1),
                ),
                nn.Sequential(nn.AvgPool2d(3, 1, 1), _unit(inputs, 192, one)),
            )
        )
        inputs = 768
    layers.append(
        Branches(
            _chain(inputs, (192, one, 1), (320, three, 2)),
            _chain(inputs, (192, one, 1), (192, row, 1), (192, column, 1), (192, three, 2)),
            nn.MaxPool2d(3, 2),
        )
    )
    inputs = 1280
    for _ in range(2):
        layers.append(
            Branches(
                _unit(inputs, 320, one),
                nn.Sequential(
                    _unit(inputs, 384, one),
                    Branches(_unit(384, 384, (1, 3)), _unit(384, 384, (3, 1))),
                ),
                nn.Sequential(
                    _chain(inputs, (448, one, 1), (384, three, 1)),
                    Branches(_unit(384, 384, (1, 3)), _unit(384, 384, (3, 1))),
                ),
                nn.Sequential(nn.AvgPool2d(3, 1, 1), _unit(inputs, 192, one)),
            )
        )
        inputs = 2048
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(2048, classes)]
    return nn.Sequential(*layers)
