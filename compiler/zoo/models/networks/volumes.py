"""Networks of volumes, clips, speech and depth, from MONAI, PyTorchVideo and transformers."""

from collections.abc import Callable, Iterator
from typing import Any

from littledragon.compiler.zoo.models.networks.network import APACHE, MIT, Network, Shape, library


def networks() -> Iterator[Network]:
    """Medical volumes, then clips, then what transformers defines."""
    yield from _medical()
    yield from _clips()
    yield from _transformers()


def _medical() -> Iterator[Network]:
    """The patches that the named recipes train on, through MONAI 1.6.1 (Apache-2.0)."""
    zoo, nnunet = "Project-MONAI/model-zoo", "MIC-DKFZ/nnUNet"
    volume: dict[str, Any] = {"spatial_dims": 3, "in_channels": 1}
    yield _monai("nnunet-3d", "nnU-Net, 3D full resolution", nnunet, "DynUNet", (1, 128, 128, 128), **_nnunet(3, 6))
    yield _monai("nnunet-2d", "nnU-Net, 2D", nnunet, "DynUNet", (1, 512, 512), **_nnunet(2, 8))
    yield _monai(
        "monai-unet",
        "U-Net of a spleen in CT",
        f"{zoo} spleen_ct_segmentation",
        "UNet",
        (1, 96, 96, 96),
        **volume,
        out_channels=2,
        channels=(16, 32, 64, 128, 256),
        strides=(2, 2, 2, 2),
        num_res_units=2,
        norm="batch",
    )
    yield _monai(
        "monai-segresnet",
        "SegResNet of brain tumours",
        f"{zoo} brats_mri_segmentation",
        "SegResNet",
        (4, 224, 224, 144),
        spatial_dims=3,
        in_channels=4,
        out_channels=3,
        init_filters=16,
        blocks_down=(1, 2, 2, 4),
        blocks_up=(1, 1, 1),
    )
    yield _monai("monai-vnet", "V-Net", "Project-MONAI/MONAI VNet", "VNet", (1, 64, 128, 128), **volume, out_channels=2)
    yield _monai(
        "monai-basic-unet",
        "U-Net with transposed convolutions",
        "Project-MONAI/MONAI BasicUNet",
        "BasicUNet",
        (3, 512, 512),
        spatial_dims=2,
        in_channels=3,
        out_channels=2,
        features=(64, 128, 256, 512, 1024, 64),
    )
    yield _monai(
        "monai-swin-unetr",
        "Swin UNETR",
        f"{zoo} swin_unetr_btcv_segmentation",
        "SwinUNETR",
        (1, 96, 96, 96),
        in_channels=1,
        out_channels=14,
        feature_size=48,
    )
    yield _monai(
        "monai-unetr",
        "UNETR",
        "Project-MONAI/MONAI UNETR",
        "UNETR",
        (1, 96, 96, 96),
        in_channels=1,
        out_channels=14,
        img_size=(96, 96, 96),
    )
    mednext = "MIC-DKFZ/MedNeXt"
    yield _monai("mednext-b", "MedNeXt-B", mednext, "MedNeXtB", (1, 128, 128, 128), **volume, out_channels=3)
    dense = "Project-MONAI/MONAI DenseNet121"
    yield _monai(
        "monai-densenet121", "DenseNet-121, 3D", dense, "DenseNet121", (1, 96, 96, 96), **volume, out_channels=2
    )
    hover = f"{zoo} pathology_nuclei_segmentation_classification"
    yield _monai("hovernet", "HoVer-Net", hover, "HoVerNet", (3, 256, 256), in_channels=3, out_classes=5, mode="fast")


def _nnunet(dimensions: int, stages: int) -> dict[str, Any]:
    filters = [32, 64, 128, 256, 320, 320] if dimensions == 3 else [32, 64, 128, 256, 512, 512, 512, 512]
    return {
        "spatial_dims": dimensions,
        "in_channels": 1,
        "out_channels": 3,
        "kernel_size": [3] * stages,
        "strides": [1] + [2] * (stages - 1),
        "upsample_kernel_size": [2] * (stages - 1),
        "filters": filters,
    }


def _monai(key: str, name: str, source: str, kind: str, shape: Shape, **given: Any) -> Network:
    def build() -> Any:

        return getattr(library("monai.networks.nets"), kind)(**given)

    return Network(key, name, source, APACHE, build, (shape,))


def _clips() -> Iterator[Network]:
    """Networks of the model zoo of PyTorchVideo 0.1.5 (Apache-2.0), at the lengths and sizes given there."""

    def zoo(key: str, name: str, function: str, shape: Shape, **given: Any) -> Network:
        def build() -> Any:

            module, _, maker = function.partition(".")
            model = getattr(library(f"pytorchvideo.models.{module}"), maker)(**given).eval()
            return (lambda x: model([x[:, :, ::4], x])) if module == "slowfast" else model

        return Network(f"pytorchvideo-{key}", name, f"facebookresearch/pytorchvideo {key}", APACHE, build, (shape,))

    x3d = "x3d.create_x3d"
    yield zoo("x3d-s", "X3D-S", x3d, (3, 13, 160, 160), input_clip_length=13, input_crop_size=160)
    yield zoo(
        "slowfast-r50",
        "SlowFast R50",
        "slowfast.create_slowfast",
        (3, 32, 224, 224),
        model_depth=50,
        slowfast_fusion_conv_kernel_size=(7, 1, 1),
    )
    wide: dict[str, Any] = {"input_clip_length": 16, "input_crop_size": 312, "depth_factor": 5.0}
    yield zoo("x3d-l", "X3D-L", x3d, (3, 16, 312, 312), **wide)
    yield zoo(
        "csn-r101",
        "CSN R101",
        "csn.create_csn",
        (3, 32, 224, 224),
        model_depth=101,
        stem_pool=None,
        head_pool_kernel_size=(4, 7, 7),
    )
    yield zoo(
        "i3d-r50",
        "I3D R50",
        "resnet.create_resnet",
        (3, 8, 224, 224),
        stem_conv_kernel_size=(5, 7, 7),
        stage_conv_a_kernel_size=((3, 1, 1),) * 4,
        model_depth=50,
        head_pool_kernel_size=(8, 7, 7),
    )


def _transformers() -> Iterator[Network]:
    """What the named repositories configure, through transformers 5.24.0; one layer where all are alike."""
    for size, width, heads, bins in (("tiny", 384, 6, 80), ("small", 768, 12, 80), ("large-v3", 1280, 20, 128)):
        yield _whisper(size, width, heads, bins)
    large: dict[str, Any] = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
    one = {"num_hidden_layers": 1}
    wave: tuple[tuple[str, str, str, str, dict[str, Any], int], ...] = (
        ("wav2vec2-base", "wav2vec 2.0 base", "facebook/wav2vec2-base", "Wav2Vec2Model", {}, 160000),
        (
            "wav2vec2-large",
            "wav2vec 2.0 large",
            "facebook/wav2vec2-large-960h-lv60",
            "Wav2Vec2Model",
            large | {"feat_extract_norm": "layer", "conv_bias": True},
            480000,
        ),
        (
            "wav2vec2-conformer",
            "wav2vec 2.0 Conformer",
            "facebook/wav2vec2-conformer-rel-pos-large",
            "Wav2Vec2ConformerModel",
            large,
            240000,
        ),
        ("sew-tiny", "SEW tiny", "asapp/sew-tiny-100k", "SEWModel", {}, 160000),
    )
    for key, name, source, kind, given, samples in wave:
        run = _run(kind, lambda model, x: model(x.reshape(1, -1)), **one, **given)
        yield Network(key, name, source, APACHE, run, ((samples,),))
    codec = _run("DacModel", lambda model, x: model.decoder(model.encoder(x)))
    yield Network("dac-44khz", "Descript Audio Codec", "descript/dac_44khz", MIT, codec, ((1, 44544),))
    vocoder = _run("SpeechT5HifiGan", lambda model, x: model(x), normalize_before=False)
    yield Network("speecht5-hifigan", "HiFi-GAN of SpeechT5", "microsoft/speecht5_hifigan", MIT, vocoder, ((256, 80),))

    def speak(model: Any, x: Any) -> None:

        model.decoder(x)
        model.posterior_encoder(library("torch").empty(1, 513, 256), library("torch").empty(1, 1, 256))

    yield Network(
        "mms-tts", "VITS of MMS", "facebook/mms-tts-eng", "CC-BY-NC-4.0", _run("VitsModel", speak), ((192, 128),)
    )
    subsample = _run("ParakeetEncoder", lambda model, x: model(x), **one)
    yield Network("parakeet-ctc", "Parakeet", "nvidia/parakeet-ctc-1.1b", "CC-BY-4.0", subsample, ((1200, 80),))
    yield from _pictures(one)


def _pictures(one: dict[str, Any]) -> Iterator[Network]:
    def plain(model: Any, x: Any) -> Any:
        return model(x)

    def segment(model: Any, x: Any) -> None:

        model.vision_encoder(x)
        decoder = model.mask_decoder
        decoder.upscale_conv2(decoder.upscale_conv1(library("torch").empty(1, 256, 64, 64)))
        model.prompt_encoder.mask_embed(library("torch").empty(1, 1, 256, 256))

    def depth(size: int, neck: list[int], fusion: int) -> Callable[[], Any]:
        def build() -> Any:

            backbone = library("transformers").Dinov2Config(
                image_size=518,
                patch_size=14,
                hidden_size=size,
                num_attention_heads=size // 64,
                out_features=["stage3", "stage6", "stage9", "stage12"],
                reshape_hidden_states=False,
            )
            given = {"reassemble_hidden_size": size, "neck_hidden_sizes": neck, "fusion_hidden_size": fusion}
            configuration = library("transformers").DepthAnythingConfig(backbone_config=backbone, **given)
            return library("transformers").DepthAnythingForDepthEstimation(configuration)

        return build

    yield Network(
        "sam-vit-b", "SAM ViT-B", "facebook/sam-vit-base", APACHE, _run("SamModel", segment), ((3, 1024, 1024),)
    )
    large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    dpt = _run("DPTForDepthEstimation", plain, **large)
    yield Network("dpt-large", "DPT-Large", "Intel/dpt-large", APACHE, dpt, ((3, 384, 384),))
    for name, given in (("small", (384, [48, 96, 192, 384], 64)), ("base", (768, [96, 192, 384, 768], 128))):
        source = f"LiheYoung/depth-anything-{name}-hf"
        key = f"depth-anything-{name}"
        yield Network(key, f"Depth Anything {name}", source, APACHE, depth(*given), ((3, 518, 518),))
    yield Network(
        "rt-detr", "RT-DETR R50", "PekingU/rtdetr_r50vd", APACHE, _run("RTDetrModel", plain), ((3, 640, 640),)
    )
    swin: dict[str, Any] = {"upscale": 4, "image_size": 64, "embed_dim": 180, "depths": [6] * 6, "num_heads": [6] * 6}
    for kind, upsampler in (("classical", "pixelshuffle"), ("realworld", "nearest+conv")):
        source = f"caidas/swin2SR-{kind}-sr-x4-64" + ("-bsrgan-psnr" if kind == "realworld" else "")
        build = _run("Swin2SRForImageSuperResolution", plain, upsampler=upsampler, **swin)
        yield Network(f"swin2sr-{kind}", f"Swin2SR {kind} x4", source, APACHE, build, ((3, 64, 64),))
    clip = (16, 3, 224, 224)
    videomae = _run("VideoMAEModel", plain, **one)
    yield Network("videomae", "VideoMAE", "MCG-NJU/videomae-base", "CC-BY-NC-4.0", videomae, (clip,))
    vivit = _run("VivitModel", plain, **one)
    yield Network("vivit", "ViViT-B", "google/vivit-b-16x2-kinetics400", MIT, vivit, ((32, 3, 224, 224),))
    glpn = _run("GLPNForDepthEstimation", plain)
    yield Network("glpn-kitti", "GLPN", "vinvino02/glpn-kitti", APACHE, glpn, ((3, 352, 1216),))
    yield Network("cvt-13", "CvT-13", "microsoft/cvt-13", APACHE, _run("CvtModel", plain), ((3, 224, 224),))


def _whisper(size: str, width: int, heads: int, bins: int) -> Network:
    build = _run(
        "WhisperModel",
        lambda model, x: model.encoder(x),
        d_model=width,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        num_mel_bins=bins,
        encoder_layers=1,
        decoder_layers=1,
    )
    return Network(f"whisper-{size}", f"Whisper-{size}", f"openai/whisper-{size}", APACHE, build, ((bins, 3000),))


def _run(kind: str, call: Callable[[Any, Any], Any], **given: Any) -> Callable[[], Any]:
    """A model of transformers with its default configuration but for what is given."""

    def build() -> Any:

        model = getattr(library("transformers"), kind)
        built = model(model.config_class(**given)).eval()
        return lambda x: call(built, x)

    return build
