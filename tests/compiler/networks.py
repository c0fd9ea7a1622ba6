"""Networks as a user would have them: `python networks.py FOLDER` exports resnet18.pt2, block.pt2 and small.onnx."""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, filters, 3, stride, 1, bias=False), nn.BatchNorm2d(filters), nn.ReLU(),
            nn.Conv2d(filters, filters, 3, 1, 1, bias=False), nn.BatchNorm2d(filters),
        )  # fmt: skip
        same = stride == 1 and channels == filters
        short = (nn.Conv2d(channels, filters, 1, stride, bias=False), nn.BatchNorm2d(filters))
        self.short = nn.Identity() if same else nn.Sequential(*short)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.short(x))


def resnet18() -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for filters in (64, 128, 256, 512):
        layers += [Residual(channels, filters, 1 if filters == 64 else 2), Residual(filters, filters, 1)]
        channels = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).eval()


class Block(nn.Module):
    """A pre-normalised decoder block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(self.first(x)).chunk(3, -1)
        q, k, v = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


def main(folder: Path) -> None:
    torch.manual_seed(0)
    image, tokens = torch.randn(1, 3, 224, 224), torch.randn(2, 64, 128)
    torch.export.save(torch.export.export(resnet18(), (image,)), folder / "resnet18.pt2")
    torch.export.save(torch.export.export(Block(128, 4).eval(), (tokens,)), folder / "block.pt2")
    small = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 16 * 16, 10), nn.Softmax(-1),
    ).eval()  # fmt: skip
    torch.onnx.export(small, (torch.randn(4, 3, 32, 32),), folder / "small.onnx", dynamo=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
