#!/usr/bin/env python3
"""Golden files for the schemes, computed in float64 with automatic differentiation.

    python3 reference/reference.py [--out DIR]

Needs PyTorch (1.13 or newer) and the standard library. One file a case, in the safetensors format:

    <stack>/<scheme>              every scheme on every stack that it has a form for
    norms/<kind>-<qk norm>        Peri-LN on a decoder, with every norm kind and QK norm
    options/<name>                arrangements of well-known models

Tensors (all float64): `loss`, the sum of the cross-entropy over the counted targets in nats;
`logits`; `stream.<site>`, the streams after the embedding rule and after every block;
`out.<block>.<sublayer>`, the bare outputs of the sublayers; `grad.<parameter>`, the gradient of
the loss. The metadata hold the scheme, the step and the configuration, which is what is chosen
beside the scheme: norms that a scheme prescribes itself are not repeated there.

Inputs and parameters are formulas (below and in `model.Parameters`), so the files do not hold them.
"""

import argparse
import array
import json
import math
import os
import struct
import sys

import torch

import model
from schemes import SCHEMES

STEP = 700
STACKS = ["decoder", "encoder", "pair", "vision"]
NORMS = ["layernorm", "layernorm_no_bias", "rmsnorm", "rmsnorm_one_plus", "crmsnorm", "dyt", "none"]
QK_NORMS = ["none", "per_head", "full_width"]

BERT = dict(stack="encoder", tied=True, token_types=2, embedding_norm=True, output_transform=True,
            logit_bias=True)
LLAMA = dict(stack="decoder", width=8, norm="rmsnorm", positions="rotary", activation="swiglu",
             bias=False)
OPTIONS = {
    # ALBERT, arXiv 1909.11942: narrow embedding, one block for all.
    "albert": ("post", dict(BERT, embedding_width=4, shared_blocks=True)),
    # BERT, arXiv 1810.04805.
    "bert": ("post", dict(BERT, embedding_width=6)),
    # LLaMA, arXiv 2302.13971; heads wider than width / heads.
    "llama": ("pre", dict(LLAMA, head_width=6)),
    # Qwen2, arXiv 2407.10671: biases on queries, keys and values alone.
    "qwen2-tied": ("pre", dict(LLAMA, head_width=4, qkv_bias=True, tied=True)),
    # Vaswani 2017: one table for source, target and head, multiplied by sqrt(width) on use.
    "tied-pair": ("pre", dict(stack="pair", tied=True, positions="sinusoidal", activation="relu",
                              embedding_scale=True)),
}


def cases():
    """Path -> (scheme name, what differs from the tiny model)."""
    found = {}
    for name, scheme in SCHEMES.items():
        for stack in STACKS:
            if stack != "pair" or scheme.pair:
                found[f"{stack}/{name}"] = name, {"stack": stack}
    for norm in NORMS:
        for qk_norm in QK_NORMS:
            found[f"norms/{norm}-{qk_norm}"] = "peri", {"norm": norm, "qk_norm": qk_norm}
    for option, case in OPTIONS.items():
        found[f"options/{option}"] = case
    return found


def configuration(changes):
    config = dict(model.DEFAULTS, **changes)
    if config["stack"] == "pair":
        config["decoder_blocks"] = 2
    return config


def grid(rows, columns, value):
    return torch.tensor([[value(b, t) for t in range(columns)] for b in range(rows)])


def tokens(length):
    return grid(2, length, lambda b, t: (3 * b + 5 * t + 1) % 7)


def targets(stack):
    """What is to be predicted; -1 is not counted."""
    if stack == "vision":
        return torch.tensor([(b + 2) % 5 for b in range(2)])
    counted = {
        "decoder": lambda b, t: True,
        "encoder": lambda b, t: (b + t) % 2 == 0,
        "pair": lambda b, t: (b, t) != (0, 2),
    }[stack]
    length = 3 if stack == "pair" else 4
    return grid(2, length, lambda b, t: (b + 2 * t + 3) % 7 if counted(b, t) else -1)


def pixels():
    """2 images of 4 patches of 4 numbers, as float32 holds them: images are read so."""
    return torch.tensor([[[math.sin(1 + b * 16 + p * 4 + k) for k in range(4)] for p in range(4)]
                         for b in range(2)], dtype=torch.float64).float().double()


def forward(scheme, config, parameters, records):
    """The logits; streams and sublayer outputs go into `records`."""
    def stack(prefix, blocks, causal, **more):
        return model.Stack(scheme, config, parameters, records, prefix, blocks, causal,
                           step=STEP, **more)

    blocks = config["blocks"]
    if config["stack"] == "pair":
        both = blocks, config["decoder_blocks"]
        source = grid(2, 4, lambda b, t: (2 * b + 3 * t + 2) % 7)
        seen = grid(2, 4, lambda b, t: (b, t) != (1, 3))
        encoder = stack("encoder.", blocks, False, seen=seen, pair=both)
        memory = encoder.run(encoder.embed_tokens(source))
        decoder = stack("decoder.", both[1], True, memory=memory, memory_seen=seen, pair=both)
        return decoder.answers(decoder.run(decoder.embed_tokens(tokens(3))))
    alone = stack("", blocks, config["stack"] == "decoder")
    if config["stack"] == "vision":
        return alone.answers(alone.run(alone.embed_patches(pixels()))[:, 0])
    return alone.answers(alone.run(alone.embed_tokens(tokens(4))))


def loss_of(logits, config):
    """Cross-entropy in nats, summed over the counted targets."""
    wanted = targets(config["stack"]).reshape(-1)
    rows = torch.log_softmax(logits.reshape(-1, logits.shape[-1]), -1)
    return sum(-rows[i, w] for i, w in enumerate(wanted.tolist()) if w >= 0)


def compute(scheme_name, config, parameters=None):
    """(tensors of the golden file, parameters); parameters not given have their formula's value."""
    if parameters is None:
        one_plus = config["norm"] == "rmsnorm_one_plus"
        parameters = model.Parameters(gain_base=0.0 if one_plus else 1.0)
    records = {}
    logits = forward(SCHEMES[scheme_name], config, parameters, records)
    loss = loss_of(logits, config)
    loss.backward()
    tensors = {"loss": loss.reshape(1), "logits": logits, **records}
    for name, parameter in parameters.items():
        gradient = parameter.grad
        tensors["grad." + name] = torch.zeros_like(parameter) if gradient is None else gradient
    return {name: tensor.detach() for name, tensor in tensors.items()}, parameters


def write_safetensors(path, tensors, metadata):
    """8 bytes with the header's length, the JSON header, the data; little-endian."""
    header, chunks, offset = {"__metadata__": metadata}, [], 0
    for name in sorted(tensors):
        numbers = array.array("d", tensors[name].reshape(-1).tolist())
        if sys.byteorder == "big":
            numbers.byteswap()
        data = numbers.tobytes()
        header[name] = {"dtype": "F64", "shape": list(tensors[name].shape),
                        "data_offsets": [offset, offset + len(data)]}
        chunks.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(chunks))


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.path.join(here, "golden"), help="folder to write to")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    for case, (scheme, changes) in cases().items():
        config = configuration(changes)
        tensors, _ = compute(scheme, config)
        metadata = {"scheme": scheme, "config": json.dumps(config), "step": str(STEP)}
        write_safetensors(os.path.join(out, case + ".safetensors"), tensors, metadata)
    print(f"{len(cases())} files in {out}")


if __name__ == "__main__":
    main()
