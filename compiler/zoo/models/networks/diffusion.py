"""Diffusion networks and the autoencoders of their latent images, as diffusers 0.42.1 builds them.

Configurations are those of the named repositories; what they leave to the library's defaults is left here too.
"""

from collections.abc import Callable, Iterator
from typing import Any

from littledragon.compiler.zoo.models.networks.network import APACHE, MIT, Network, Shape, library

_RAIL, _RAIL_XL = "CreativeML OpenRAIL-M", "CreativeML Open RAIL++-M"
_ENCODER, _DECODER = ("DownEncoderBlock2D",) * 4, ("UpDecoderBlock2D",) * 4
_VAE: dict[str, Any] = {
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
    "down_block_types": _ENCODER,
    "up_block_types": _DECODER,
    "latent_channels": 4,
}
_XL: dict[str, Any] = {
    "sample_size": 128,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "block_out_channels": (320, 640, 1280),
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (5, 10, 20),
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
}
_DC: dict[str, Any] = {
    "in_channels": 3,
    "latent_channels": 32,
    "attention_head_dim": 32,
    "encoder_block_types": ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
    "decoder_block_types": ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
    "encoder_block_out_channels": (128, 256, 512, 512, 1024, 1024),
    "decoder_block_out_channels": (128, 256, 512, 512, 1024, 1024),
    "encoder_layers_per_block": (2, 2, 2, 3, 3, 3),
    "decoder_layers_per_block": (3, 3, 3, 3, 3, 3),
    "encoder_qkv_multiscales": ((), (), (), (5,), (5,), (5,)),
    "decoder_qkv_multiscales": ((), (), (), (5,), (5,), (5,)),
    "decoder_norm_types": "rms_norm",
    "decoder_act_fns": "silu",
    "upsample_block_type": "interpolate",
    "downsample_block_type": "Conv",
}
_COGVIDEO: dict[str, Any] = {
    "block_out_channels": (128, 256, 256, 512),
    "down_block_types": ("CogVideoXDownBlock3D",) * 4,
    "up_block_types": ("CogVideoXUpBlock3D",) * 4,
    "layers_per_block": 3,
}
_CIFAR: dict[str, Any] = {
    "sample_size": 32,
    "block_out_channels": (128, 256, 256, 256),
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    "downsample_padding": 0,
}
_CHURCH: dict[str, Any] = {
    "sample_size": 256,
    "block_out_channels": (128, 128, 256, 256, 512, 512),
    "down_block_types": ("DownBlock2D",) * 4 + ("AttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "AttnUpBlock2D") + ("UpBlock2D",) * 4,
    "downsample_padding": 0,
}


def networks() -> Iterator[Network]:
    """Denoisers and autoencoders of images and of clips."""
    sd1, sd2 = "stable-diffusion-v1-5/stable-diffusion-v1-5", "stabilityai/stable-diffusion-2-1"
    linear: dict[str, Any] = {
        "cross_attention_dim": 1024,
        "attention_head_dim": (5, 10, 20, 20),
        "use_linear_projection": True,
    }
    yield Network("stable-diffusion-1.5", "Stable Diffusion 1.5", sd1, _RAIL, _unet(768), ((4, 64, 64),))
    xl = "stabilityai/stable-diffusion-xl-base-1.0"
    yield Network("stable-diffusion-xl", "Stable Diffusion XL", xl, _RAIL_XL, _unet(**_XL), ((4, 128, 128),))
    yield Network("stable-diffusion-2.1", "Stable Diffusion 2.1", sd2, _RAIL_XL, _unet(**linear), ((4, 96, 96),))
    images: tuple[tuple[str, str, str, str, str, dict[str, Any], int], ...] = (
        ("sd-vae", "Stable Diffusion VAE", "stabilityai/sd-vae-ft-mse", MIT, "AutoencoderKL", _VAE, 512),
        ("sdxl-vae", "SDXL VAE", "stabilityai/sdxl-vae", MIT, "AutoencoderKL", _VAE, 1024),
        ("taesd", "TAESD", "madebyollin/taesd", MIT, "AutoencoderTiny", {}, 512),
        ("dc-ae", "DC-AE of Sana", "mit-han-lab/dc-ae-f32c32-sana-1.1-diffusers", MIT, "AutoencoderDC", _DC, 512),
    )
    for key, name, source, licence, kind, given, size in images:
        yield Network(key, name, source, licence, _autoencoder(kind, given), ((3, size, size),))
    for key, name, source, given in (
        ("ddpm-cifar10", "DDPM, CIFAR-10", "google/ddpm-cifar10-32", _CIFAR),
        ("ddpm-church", "DDPM, LSUN churches", "google/ddpm-church-256", _CHURCH),
    ):
        size = given["sample_size"]
        yield Network(key, name, source, APACHE, _denoiser(given), ((3, size, size),))
    yield from _clips()


def _clips() -> Iterator[Network]:
    """Frames and sizes are cut down to those of a short preview, or of one tile where the decoder works by tiles."""

    def modelscope() -> Any:

        model = library("diffusers").UNet3DConditionModel().eval()
        return lambda x: model(x, library("torch").empty(1), library("torch").empty(1, 77, 1024))

    source = "ali-vilab/text-to-video-ms-1.7b"
    yield Network("modelscope-t2v", "ModelScope T2V", source, "CC-BY-NC-4.0", modelscope, ((4, 16, 32, 32),))
    clips: tuple[tuple[str, str, str, str, str, dict[str, Any], Shape], ...] = (
        (
            "hunyuan-vae",
            "HunyuanVideo VAE",
            "hunyuanvideo-community/HunyuanVideo",
            "Tencent Hunyuan Community License",
            "AutoencoderKLHunyuanVideo",
            {},
            (3, 9, 256, 256),
        ),
        (
            "cogvideox-vae",
            "CogVideoX VAE",
            "THUDM/CogVideoX-2b",
            APACHE,
            "AutoencoderKLCogVideoX",
            _COGVIDEO,
            (3, 9, 240, 360),
        ),
        (
            "wan-vae",
            "Wan 2.1 VAE",
            "Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
            APACHE,
            "AutoencoderKLWan",
            {},
            (3, 5, 240, 416),
        ),
        (
            "ltx-vae",
            "LTX-Video VAE",
            "Lightricks/LTX-Video",
            "LTX-Video Open Weights License",
            "AutoencoderKLLTXVideo",
            {},
            (3, 9, 256, 384),
        ),
    )
    for key, name, source, licence, kind, given, shape in clips:
        yield Network(key, name, source, licence, _autoencoder(kind, given), (shape,))


def _unet(cross_attention_dim: int, **given: Any) -> Callable[[], Any]:
    def build() -> Any:

        model = library("diffusers").UNet2DConditionModel(cross_attention_dim=cross_attention_dim, **given).eval()
        return lambda x: model(x, library("torch").empty(1), library("torch").empty(1, 77, cross_attention_dim))

    return build


def _denoiser(given: dict[str, Any]) -> Callable[[], Any]:
    def build() -> Any:

        model = library("diffusers").UNet2DModel(layers_per_block=2, norm_eps=1e-6, **given).eval()
        return lambda x: model(x, library("torch").empty(1))

    return build


def _autoencoder(kind: str, given: dict[str, Any]) -> Callable[[], Any]:
    def build() -> Any:

        model = getattr(library("diffusers"), kind)(**given).eval()

        def run(x: Any) -> None:
            found = model.encode(x)
            model.decode(
                found.latent_dist.mode()
                if hasattr(found, "latent_dist")
                else getattr(found, "latent", None)
                if hasattr(found, "latent")
                else found.latents
            )

        return run

    return build
