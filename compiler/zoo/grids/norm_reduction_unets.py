"""Published networks with group normalisation: diffusion U-Nets and autoencoders, and some that see images."""

from dataclasses import dataclass
from typing import Final

from littledragon.compiler.zoo.block import Model
from littledragon.compiler.zoo.grids.norm_reduction_networks import Site, network


@dataclass(frozen=True)
class UNet:
    """A diffusion U-Net or autoencoder as diffusers configures it: pixels of its latents or images, channels of its
    levels, residual blocks of a level, and levels with attention (counted from the finest)."""

    model: Model
    key: str
    pixels: tuple[int, int]
    channels: tuple[int, ...]
    layers: int = 2
    attention: tuple[int, ...] = ()
    skips: bool = True
    """Whether the way up takes what the way down left: an autoencoder's does not."""

    def sites(self) -> tuple[Site, ...]:
        """Channels and pixels of every group normalisation in a residual block, each once."""
        down, last = self.channels, len(self.channels) - 1
        found = [(down[max(level - 1, 0)], level) for level in range(len(down))] + list(
            zip(down, range(len(down)), strict=True)
        )
        above = down[-1]
        for level in range(last, -1, -1):
            own, below = down[level], down[max(level - 1, 0)]
            for layer in range(self.layers + 1):
                skip = (below if layer == self.layers else own) if self.skips else 0
                found.append(((above if layer == 0 else own) + skip, level))
            above = own
        return tuple(dict.fromkeys((channels, self._at(level)) for channels, level in found))

    def attended(self) -> tuple[Site, ...]:
        """The same of the normalisations before attention, which no activation follows."""
        return tuple((self.channels[level], self._at(level)) for level in self.attention)

    def _at(self, level: int) -> tuple[int, int]:
        height, width = self.pixels
        return height >> level, width >> level


_RAIL = "CreativeML OpenRAIL-M"
_STABILITY = "Stability AI Community License"
UNETS: Final = (
    UNet(
        Model("Stable Diffusion 1.5 U-Net", "stable-diffusion-v1-5/stable-diffusion-v1-5", _RAIL),
        "sd15-unet",
        (64, 64),
        (320, 640, 1280, 1280),
        attention=(0, 1, 2, 3),
    ),
    UNet(
        Model("Stable Diffusion 2.1 U-Net", "stabilityai/stable-diffusion-2-1", "CreativeML OpenRAIL++-M"),
        "sd21-unet",
        (96, 96),
        (320, 640, 1280, 1280),
        attention=(0, 1, 2),
    ),
    UNet(
        Model("SDXL U-Net", "stabilityai/stable-diffusion-xl-base-1.0", "CreativeML OpenRAIL++-M"),
        "sdxl-unet",
        (128, 128),
        (320, 640, 1280),
        attention=(1, 2),
    ),
    UNet(
        Model("SDXL refiner U-Net", "stabilityai/stable-diffusion-xl-refiner-1.0", "CreativeML OpenRAIL++-M"),
        "sdxl-refiner",
        (128, 128),
        (384, 768, 1536, 1536),
        attention=(1, 2),
    ),
    UNet(
        Model("Stable Video Diffusion U-Net", "stabilityai/stable-video-diffusion-img2vid", _STABILITY),
        "svd-unet",
        (72, 128),
        (320, 640, 1280, 1280),
        attention=(0, 1, 2),
    ),
    UNet(
        Model("Kandinsky 2.2 U-Net", "kandinsky-community/kandinsky-2-2-decoder", "Apache-2.0"),
        "kandinsky-2.2",
        (96, 96),
        (384, 768, 1152, 1536),
        3,
    ),
    UNet(
        Model("DDPM CIFAR-10", "google/ddpm-cifar10-32", "Apache-2.0"),
        "ddpm-cifar10",
        (32, 32),
        (128, 256, 256, 256),
        attention=(1,),
    ),
    UNet(
        Model("DDPM CelebA-HQ", "google/ddpm-celebahq-256", "Apache-2.0"),
        "ddpm-celebahq",
        (256, 256),
        (128, 128, 256, 256, 512, 512),
        attention=(4,),
    ),
    UNet(
        Model("LDM CelebA-HQ", "CompVis/ldm-celebahq-256", "Apache-2.0"),
        "ldm-celebahq",
        (64, 64),
        (224, 448, 672, 896),
        attention=(1, 2, 3),
    ),
    UNet(
        Model("ADM ImageNet 256", "openai/guided-diffusion", "MIT"),
        "adm-256",
        (256, 256),
        (256, 256, 512, 512, 1024, 1024),
        attention=(3, 4, 5),
    ),
    UNet(
        Model("AudioLDM 2 U-Net", "cvssp/audioldm2", "CC-BY-NC-SA-4.0"),
        "audioldm2",
        (256, 16),
        (128, 256, 384, 640),
        attention=(1, 2, 3),
    ),
    UNet(
        Model("Stable Diffusion VAE", "stabilityai/sd-vae-ft-mse", "MIT"),
        "sd-vae",
        (512, 512),
        (128, 256, 512, 512),
        attention=(3,),
        skips=False,
    ),
    UNet(
        Model("SDXL VAE", "madebyollin/sdxl-vae-fp16-fix", "MIT"),
        "sdxl-vae",
        (1024, 1024),
        (128, 256, 512, 512),
        attention=(3,),
        skips=False,
    ),
    UNet(
        Model("LDM CelebA-HQ VQ-VAE", "CompVis/ldm-celebahq-256", "Apache-2.0"),
        "ldm-vqvae",
        (256, 256),
        (128, 256, 512),
        attention=(2,),
        skips=False,
    ),
    UNet(
        Model("VQGAN f16", "CompVis/taming-transformers", "MIT"),
        "vqgan-f16",
        (256, 256),
        (128, 128, 256, 256, 512),
        attention=(4,),
        skips=False,
    ),
)
"""Diffusion models and their autoencoders; all have 32 groups of channels."""

GROUPED: Final = (
    network(
        "BiT R50x1",
        "google-research/big_transfer",
        "Apache-2.0",
        "bit-r50x1",
        "64@56 256@56 128@28 512@28 256@14 1024@14 512@7 2048@7",
    ),
    network(
        "BiT R101x3",
        "google-research/big_transfer",
        "Apache-2.0",
        "bit-r101x3",
        "192@56 768@56 384@28 1536@28 768@14 3072@14 1536@7 6144@7",
    ),
    network(
        "Mask R-CNN GN",
        "facebookresearch/detectron2",
        "Apache-2.0",
        "mask-rcnn-gn",
        "256@200x304 256@100x152 256@50x76 256@25x38 256@14",
    ),
    network(
        "Deformable DETR",
        "SenseTime/deformable-detr",
        "Apache-2.0",
        "deformable-detr",
        "256@100x134 256@50x67 256@25x34 256@13x17",
    ),
    network("FCOS", "tianzhi0549/FCOS", "BSD-2-Clause", "fcos", "256@100x128 256@50x64 256@25x32 256@13x16"),
)
"""Networks with group normalisation outside diffusion: 32 groups, followed by ReLU or nothing."""
