"""Networks of torchvision, timm, segmentation_models_pytorch and EfficientDet."""

from collections.abc import Callable, Iterator
from typing import Any

from littledragon.compiler.zoo.models.networks.network import APACHE, BSD, MIT, Network, Shape, library


def famous() -> Iterator[Network]:
    """What most people run, classified images first."""
    yield from (_torchvision(name, *sizes) for name, sizes in _FIRST.items())
    yield from (_timm(name) for name in _TIMM_FIRST.split())


def others() -> Iterator[Network]:
    """The other classifiers, with at least one of each architecture."""
    yield from (_torchvision(name, *sizes) for name, sizes in _TORCHVISION.items())
    yield from (_timm(name) for name in _TIMM.split())


_FIRST: dict[str, tuple[Any, ...]] = {
    "resnet50": (224,),
    "vgg16": (224,),
    "mobilenet_v2": (224,),
    "efficientnet_b0": (224,),
    "resnext50_32x4d": (224,),
    "alexnet": (224,),
    "googlenet": (224,),
    "inception_v3": (299,),
    "deeplabv3_resnet50": (520,),
    "convnext_tiny": (224,),
    "r3d_18": ((16, 112, 112),),
    "resnet18": (224,),
}
_AT_224 = """vgg11_bn resnet34 resnet152 resnext101_32x8d resnext101_64x4d wide_resnet50_2 squeezenet1_0 squeezenet1_1
    densenet121 densenet161 mobilenet_v3_large mobilenet_v3_small mnasnet0_5 mnasnet1_3 shufflenet_v2_x0_5
    shufflenet_v2_x1_0 shufflenet_v2_x2_0 regnet_x_400mf regnet_x_3_2gf regnet_x_16gf regnet_y_400mf
    regnet_y_1_6gf regnet_y_8gf regnet_y_32gf convnext_base"""
_TORCHVISION: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(_AT_224.split(), (224,)),
    "efficientnet_b1": (240,),
    "efficientnet_b2": (288,),
    "efficientnet_b3": (300,),
    "efficientnet_b4": (380,),
    "efficientnet_b5": (456,),
    "efficientnet_b6": (528,),
    "efficientnet_b7": (600,),
    "efficientnet_v2_s": (384,),
    "efficientnet_v2_m": (480,),
    "fcn_resnet50": (520,),
    "deeplabv3_mobilenet_v3_large": (520,),
    "lraspp_mobilenet_v3_large": (520,),
    "mc3_18": ((16, 112, 112),),
    "r2plus1d_18": ((16, 112, 112),),
    "s3d": ((16, 224, 224),),
}


def _torchvision(name: str, *sizes: Any) -> Network:
    def build() -> Any:

        given: dict[str, Any] = {"weights": None}
        if name.startswith(("deeplab", "fcn_", "lraspp")):
            given["weights_backbone"] = None
        if name in ("googlenet", "inception_v3"):
            given["init_weights"] = False
        return library("torchvision").models.get_model(name, **given)

    shapes = tuple((3, *size) if isinstance(size, tuple) else (3, size, size) for size in sizes)
    return Network(f"torchvision-{name}".replace("_", "-"), name, f"torchvision {name}", BSD, build, shapes)


_TIMM_FIRST = """cspdarknet53 efficientnet_lite0 mobilenetv3_large_100 convnextv2_huge regnety_040 hrnet_w32
    swin_tiny_patch4_window7_224 vit_base_patch32_224 vit_base_patch16_384 vit_large_patch14_clip_336
    vit_small_patch14_dinov2 sam2_hiera_large repvgg_b1g4 seresnext101_64x4d"""
_TIMM = """resnet50d resnetv2_50x1_bit resnetv2_101x3_bit ecaresnet50t resnest50d res2net50_26w_4s res2next50
    skresnext50_32x4d selecsls60 dla34 dla60x_c dla102x2 dpn68b dpn92 dpn131 darknet53 cspresnext50 cs3darknet_l
    cspnext_m vgg19_bn inception_resnet_v2 inception_v4 nasnetalarge pnasnet5large xception41 xception71
    mobilenetv1_100 mobilenetv2_050 mobilenetv2_140 mobilenetv4_conv_small mobilenetv4_conv_medium
    mobilenetv4_conv_large mobilenetv4_hybrid_medium mobilenetv5_300m mobileone_s0 mobileone_s4
    mobilenet_edgetpu_v2_m mnasnet_small fbnetc_100 fbnetv3_d fbnetv3_g lcnet_050 lcnet_100 lcnetv2_base tinynet_a
    tinynet_e mixnet_s mixnet_xl rexnet_100 rexnet_300 semnasnet_100 spnasnet_100 hardcorenas_f ghostnet_100
    ghostnetv2_160 ghostnetv3_100 repghostnet_200 efficientnet_es efficientnet_el tf_efficientnet_lite4
    tf_efficientnetv2_s tf_efficientnetv2_l tf_efficientnet_b8 tf_efficientnet_l2 efficientnet_h_b5
    gc_efficientnetv2_rw_t regnetx_002 regnetx_032 regnetx_320 regnety_002 regnety_160 regnety_1280 regnetz_c16
    regnetz_d8 regnetz_e8 regnetv_064 repvgg_a2 repvgg_b3 repvgg_d2se repvit_m0_9 repvit_m2_3 gernet_s gernet_l
    tresnet_l hgnet_small hgnetv2_b0 hgnetv2_b6 hrnet_w18 hrnet_w48 ese_vovnet19b_dw ese_vovnet39b ese_vovnet57b
    densenet201 rdnet_tiny rdnet_large nfnet_l0 dm_nfnet_f0 dm_nfnet_f3 eca_nfnet_l2 nf_regnet_b1 resnetrs50
    resnetrs200 lambda_resnet26t botnet26t_256 halonet50ts gcresnext50ts convnext_atto convnext_nano convnext_large
    convnext_xlarge convmixer_768_32 convmixer_1024_20_ks9_p14 convmixer_1536_20 inception_next_tiny
    inception_next_base mambaout_tiny mambaout_base poolformer_s12 poolformerv2_m36 caformer_s18 convformer_b36
    fasternet_t0 fasternet_l starnet_s1 starnet_s4 shvit_s4 swiftformer_l3 efficientformer_l3 efficientformerv2_s2
    edgenext_small edgenext_base mobilevit_s mobilevitv2_050 mobilevitv2_200 fastvit_t8 fastvit_sa36 fastvit_mci3
    efficientvit_b0 efficientvit_b3 efficientvit_l2 efficientvit_m5 nextvit_base iformer_m focalnet_tiny_lrf
    focalnet_base_srf focalnet_huge_fl4 coatnet_0_rw_224 coatnet_3_rw_224 maxvit_tiny_tf_512 maxvit_large_tf_384
    maxxvit_rmlp_small_rw_256 coat_small pvt_v2_b0 pvt_v2_b5 twins_svt_large twins_pcpvt_base davit_base
    davit_huge_fl gcvit_tiny gcvit_base mvitv2_tiny mvitv2_large levit_conv_256 visformer_small nest_small_jx
    pit_b_224 volo_d1_224 xcit_small_12_p8_224 xcit_large_24_p16_384 tiny_vit_21m_512 crossvit_18_dagger_408
    convit_base vitamin_large_384 vit_tiny_patch16_224 vit_giant_patch14_dinov2 vit_so400m_patch14_siglip_384
    vit_so400m_patch16_siglip_512 vit_7b_patch16_dinov3 eva02_large_patch14_448 beit_large_patch16_512
    samvit_base_patch16 samvit_huge_patch16 sam2_hiera_tiny hiera_base_224 flexivit_base vit_base_patch8_224
    aimv2_large_patch14_448 cspresnet50 csatv2 efficientvim_m4 resnet50x64_clip vit_base_r50_s16_384
    vit_small_r26_s32_384 xception65p darknetaa53 resnetblur50 wide_resnet101_2 legacy_senet154 densenetblur121d"""


def _timm(name: str, **given: Any) -> Network:

    configuration = library("timm").get_pretrained_cfg(name)
    shapes = [tuple(configuration.input_size)]
    test = configuration.test_input_size
    if test and not configuration.fixed_input_size and test[1] >= 1.25 * shapes[0][1]:
        shapes.append(tuple(test))
    key = f"timm-{name}".replace("_", "-")
    return Network(
        key, name, f"timm {name}", APACHE, lambda: library("timm").create_model(name, **given), tuple(shapes)
    )


def _dilated(name: str, stride: int) -> Network:
    """A timm network as the encoder of DeepLab: its last stages dilated instead of strided, on 512 × 512 images."""

    def build() -> Any:
        return library("timm").create_model(name, features_only=True, output_stride=stride)

    key = f"timm-{name}-os{stride}".replace("_", "-")
    return Network(key, f"{name}, output stride {stride}", f"timm {name}", APACHE, build, ((3, 512, 512),))


def segmentation() -> Iterator[Network]:
    """Encoders and decoders of segmentation_models_pytorch 0.6.0 (MIT), named after the data that they are for."""
    for architecture, encoder, size, given in (
        ("Unet", "resnet34", 512, {}),
        ("Unet", "vgg16_bn", 512, {}),
        ("UnetPlusPlus", "efficientnet-b4", 512, {}),
        ("FPN", "resnet50", 512, {"classes": 19}),
        ("PSPNet", "resnet101", 480, {"classes": 150, "encoder_depth": 5}),
        ("DeepLabV3Plus", "resnet101", 512, {"classes": 21}),
        ("DeepLabV3", "resnet34", 768, {"classes": 19}),
        ("DeepLabV3Plus", "mobilenet_v2", 512, {"classes": 21}),
        ("Linknet", "resnet18", 768, {"classes": 19}),
        ("MAnet", "resnext50_32x4d", 512, {}),
        ("PAN", "resnet50", 512, {"classes": 21}),
        ("UPerNet", "resnet50", 512, {"classes": 150}),
        ("UPerNet", "tu-convnext_tiny", 512, {"classes": 150}),
        ("Segformer", "mit_b0", 512, {"classes": 150}),
        ("Segformer", "mit_b5", 1024, {"classes": 19}),
    ):
        yield _smp(architecture, encoder, size, given)
    yield from (
        _dilated(name, stride) for name in ("xception65", "efficientnet_b3", "resnext50_32x4d") for stride in (16, 8)
    )


def _smp(architecture: str, encoder: str, size: int, given: dict[str, Any]) -> Network:
    def build() -> Any:

        return getattr(library("segmentation_models_pytorch"), architecture)(
            encoder_name=encoder, encoder_weights=None, **given
        )

    key = f"smp-{architecture}-{encoder}".lower().replace("_", "-")
    source = f"segmentation_models_pytorch {architecture} {encoder}"
    return Network(key, f"{architecture}, {encoder}", source, MIT, build, ((3, size, size),))


def detection() -> Iterator[Network]:
    """Backbones, pyramids and heads, without the boxes between them."""

    def regions(model: Any, x: Any) -> None:

        model.rpn.head(list(model.backbone(x).values()))
        heads, features = model.roi_heads, library("torch").empty(1, 256, 14, 14)
        if heads.mask_head is not None:
            heads.mask_predictor(heads.mask_head(features))
        if heads.keypoint_head is not None:
            heads.keypoint_predictor(heads.keypoint_head(features))
        heads.box_head(library("torch").empty(1, 256, 7, 7))

    def dense(model: Any, x: Any) -> None:
        found = model.backbone(x)
        model.head(list(found.values()))

    def detector(name: str, size: Shape, run: Callable[[Any, Any], None]) -> Network:
        def build() -> Any:

            model = library("torchvision").models.get_model(name, weights=None, weights_backbone=None).eval()
            return lambda x: run(model, x)

        key = f"torchvision-{name}".replace("_", "-")
        return Network(key, name, f"torchvision {name}", BSD, build, ((3, *size),))

    for name in ("maskrcnn_resnet50_fpn", "keypointrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn_v2"):
        yield detector(name, (800, 1344), regions)
    for name in ("retinanet_resnet50_fpn_v2", "fcos_resnet50_fpn"):
        yield detector(name, (800, 1344), dense)
    yield detector("ssd300_vgg16", (300, 300), dense)
    yield detector("ssdlite320_mobilenet_v3_large", (320, 320), dense)

    def raft() -> Any:

        model = library("torchvision").models.optical_flow.raft_large(weights=None).eval()
        return lambda x: model(x, x, num_flow_updates=1)

    yield Network("torchvision-raft-large", "raft_large", "torchvision raft_large", BSD, raft, ((3, 360, 640),))
    for name in ("tf_efficientdet_d0", "tf_efficientdet_d3", "tf_efficientdet_d7", "efficientdetv2_dt"):
        yield _efficientdet(name)


def _efficientdet(name: str) -> Network:

    configuration = library("effdet").get_efficientdet_config(name)
    key, source = f"effdet-{name}".replace("_", "-"), f"rwightman/efficientdet-pytorch {name}"

    def build() -> Any:
        return library("effdet").EfficientDet(configuration, pretrained_backbone=False)

    return Network(key, name, source, APACHE, build, ((3, *configuration.image_size),))
