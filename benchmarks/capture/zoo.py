"""Every training set-up that the capture is measured on, by name.

Networks come from transformers' configurations (random weights, nothing is downloaded), from
`benchmarks.data`, and from `networks` and `habits` beside this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional

from benchmarks.capture import networks
from benchmarks.capture.setups import Setup, habit_setups, images
from benchmarks.data import other, vision


def _classify(module: nn.Module, batch: Any) -> Any:
    return functional.cross_entropy(module(batch[0]), batch[1])


def _own_loss(module: nn.Module, batch: Any) -> Any:
    return module(**batch).loss


def _labelled(samples: int, size: int) -> Any:
    pixels, labels = images(samples, size)
    return {"pixel_values": pixels, "labels": labels}


def _tokens(samples: int, length: int, **more: Any) -> Any:
    tokens = torch.randint(0, 500, (samples, length))
    return {"input_ids": tokens, "labels": tokens, **more}


def _hub(kind: str, batch: Callable[[], Any], head: str, real: bool = True, **config: Any) -> Setup:
    def make() -> nn.Module:
        settings = getattr(transformers, f"{kind}Config")(**config)
        module: nn.Module = getattr(transformers, f"{kind}{head}")(settings)
        return module

    return Setup(make, batch, _own_loss, torch.optim.AdamW, real=real)


def _small_text(**more: Any) -> dict[str, Any]:
    return {"vocab_size": 1000, **more}


_BERT = _small_text(
    hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=512
)


def _large() -> dict[str, Setup]:
    """The two that the speed is stated for, and one more; too large for a real step here."""
    return {
        "ResNet-50, 32 images": _hub(
            "ResNet", lambda: _labelled(32, 224), "ForImageClassification", False, num_labels=1000
        ),
        "GPT-2 small, 4 x 512": _hub("GPT2", lambda: _tokens(4, 512), "LMHeadModel", False),
        "Swin tiny, 32 images": _hub(
            "Swin", lambda: _labelled(32, 224), "ForImageClassification", False, num_labels=1000
        ),
    }


def _vision() -> dict[str, Setup]:
    return {
        "ResNet-18": Setup(
            lambda: vision.resnet(18, 10, small=True), lambda: images(16, 32), _classify
        ),
        "MobileNet": Setup(
            lambda: vision.mobilenet_v2(10, small=True), lambda: images(8, 32), _classify
        ),
        "EfficientNet": Setup(
            lambda: vision.efficientnet_b0(10, small=True), lambda: images(8, 32), _classify
        ),
        "ConvNeXt": _hub(
            "ConvNext", lambda: _labelled(4, 64), "ForImageClassification",
            hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 2, 2], num_labels=10,
        ),
        "ViT": _hub(
            "ViT", lambda: _labelled(8, 64), "ForImageClassification", image_size=64,
            patch_size=8, hidden_size=128, num_hidden_layers=4, num_attention_heads=4,
            intermediate_size=512, num_labels=10,
        ),
        "Swin": _hub(
            "Swin", lambda: _labelled(4, 64), "ForImageClassification", image_size=64,
            patch_size=2, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4,
            num_labels=10,
        ),
        "segmentation": _hub(
            "Segformer",
            lambda: {
                "pixel_values": torch.randn(2, 3, 64, 64),
                "labels": torch.randint(0, 5, (2, 64, 64)),
            },
            "ForSemanticSegmentation", num_labels=5,
        ),
        "U-Net": Setup(
            networks.UNet,
            lambda: (torch.randn(4, 3, 64, 64), torch.randint(0, 2, (4, 64, 64))),
            _classify,
        ),
        "VAE": Setup(networks.Variational, lambda: torch.rand(64, 784), networks.variational_loss),
        "diffusion step": Setup(
            networks.Denoiser, lambda: torch.randn(8, 3, 32, 32), networks.denoising_loss
        ),
        "two towers": Setup(
            networks.TwoTowers,
            lambda: (torch.randn(32, 3, 32, 32), torch.randint(0, 500, (32, 16))),
            networks.contrastive_loss,
        ),
        "DCGAN": Setup(
            lambda: other.DCGAN(width=16), lambda: torch.randn(8, 3, 64, 64), lambda m, b: m(b)
        ),
        "PointNet": Setup(
            other.PointNet,
            lambda: (torch.randn(4, 3, 256), torch.randint(0, 16, (4,))),
            _classify,
        ),
    }  # fmt: skip


def _text() -> dict[str, Setup]:
    return {
        "BERT": _hub(
            "Bert",
            lambda: {"input_ids": _tokens(8, 64)["input_ids"], "labels": torch.zeros(8).long()},
            "ForSequenceClassification", **_BERT,
        ),
        "DistilBERT": _hub(
            "DistilBert", lambda: _tokens(8, 64), "ForMaskedLM",
            **_small_text(dim=128, n_layers=3, n_heads=4, hidden_dim=512),
        ),
        "GPT-2": _hub(
            "GPT2", lambda: _tokens(4, 64), "LMHeadModel",
            **_small_text(n_embd=128, n_layer=3, n_head=4),
        ),
        "T5": _hub(
            "T5", lambda: _tokens(4, 32), "ForConditionalGeneration",
            **_small_text(d_model=128, d_ff=256, num_layers=2, num_heads=4, d_kv=32,
                          decoder_start_token_id=0, tie_word_embeddings=True),
        ),
        "Whisper": _hub(
            "Whisper",
            lambda: {
                "input_features": torch.randn(2, 80, 200), "labels": torch.zeros(2, 16).long()
            },
            "ForConditionalGeneration",
            **_small_text(
                d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
                decoder_attention_heads=2, encoder_ffn_dim=128, decoder_ffn_dim=128,
                max_source_positions=100, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
            ),
        ),
        "Llama": _hub(
            "Llama", lambda: _tokens(4, 64), "ForCausalLM",
            **_small_text(
                hidden_size=128, intermediate_size=256, num_hidden_layers=3,
                num_attention_heads=4, num_key_value_heads=2,
            ),
        ),
        "mixture of experts": _hub(
            "Mixtral", lambda: _tokens(2, 32), "ForCausalLM",
            **_small_text(
                hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, num_local_experts=4,
                output_router_logits=False,
            ),
        ),
        "LSTM language model": Setup(
            lambda: other.LanguageModel(words=1000, width=64),
            lambda: (torch.randint(0, 1000, (32, 8)), torch.randint(0, 1000, (256,))),
            _classify, lambda p: torch.optim.SGD(p, lr=1.0),
        ),
        "translation": Setup(
            lambda: other.Translation(words=1000, width=64, layers=2),
            lambda: (torch.randint(0, 1000, (4, 16)), torch.randint(0, 1000, (64,))),
            _classify,
        ),
        "TCN": Setup(
            networks.Temporal,
            lambda: (torch.randn(16, 8, 128), torch.randint(0, 10, (16,))),
            _classify,
        ),
    }  # fmt: skip


def _tables() -> dict[str, Setup]:
    return {
        "NeuMF": Setup(
            other.NeuMF,
            lambda: (torch.randint(0, 3000, (256, 2)), torch.rand(256, 1)),
            lambda m, b: functional.binary_cross_entropy(m(b[0]), b[1]),
        ),
        "DLRM, sparse embeddings": Setup(
            networks.Recommender,
            lambda: (torch.randn(64, 13), torch.randint(0, 10000, (64, 4)), torch.rand(64)),
            networks.click_loss,
            lambda p: torch.optim.SGD(p, lr=0.1),
        ),
        "policy": Setup(
            lambda: other.policy(24, 4),
            lambda: (torch.randn(128, 24), torch.randn(128, 4)),
            lambda m, b: functional.mse_loss(m(b[0]), b[1]),
        ),
    }


def zoo() -> dict[str, Setup]:
    """All set-ups by name."""
    return {**_vision(), **_text(), **_tables(), **habit_setups(), **_large()}
