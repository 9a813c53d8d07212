#!/usr/bin/env python3
"""Checks of the reference against itself: finite differences, known equalities, torch's own parts.

    python3 reference/selfcheck.py
"""

import torch
import torch.nn.functional as F

import model
import reference
import schemes


def close(what, a, b, tolerance=1e-12):
    error = (a - b).abs().max().item()
    assert error <= tolerance, f"{what}: off by {error}"


def tiny(scheme, stack="decoder", parameters=None, **changes):
    config = reference.configuration(dict(changes, stack=stack))
    tensors, used = reference.compute(scheme, config, parameters)
    return tensors, used


def preset(values):
    """Parameters with some values given."""
    parameters = model.Parameters()
    for name, value in values.items():
        parameters[name] = value.detach().clone().requires_grad_()
    return parameters


def finite_differences():
    """One entry of every parameter of every case. What the gradient takes for constant keeps the
    value of the unmoved pass: the values of `detach` are recorded there and played back."""
    plain_detach, step, worst = torch.Tensor.detach, 2e-6, 0.0
    for case, (scheme, changes) in reference.cases().items():
        config = reference.configuration(changes)
        tensors, parameters = reference.compute(scheme, config)

        def loss(detach):
            torch.Tensor.detach = detach
            try:
                with torch.no_grad():
                    logits = reference.forward(schemes.SCHEMES[scheme], config, parameters, {})
                    return reference.loss_of(logits, config).item()
            finally:
                torch.Tensor.detach = plain_detach

        constants = []

        def recording(tensor):
            constants.append(plain_detach(tensor).clone())
            return constants[-1]

        def moved(entry, amount):
            replay = iter(constants)
            old = entry.item()
            entry.data.fill_(old + amount)
            value = loss(lambda tensor: next(replay))
            entry.data.fill_(old)
            return value

        loss(recording)
        for n, (name, parameter) in enumerate(parameters.items()):
            i = (7 * n + 3) % parameter.numel()
            entry = parameter.data.reshape(-1)[i]
            near = moved(entry, step) - moved(entry, -step)
            far = moved(entry, 2 * step) - moved(entry, -2 * step)
            measured = (8 * near - far) / (12 * step)  # error of fourth order
            exact = tensors["grad." + name].reshape(-1)[i].item()
            error = abs(measured - exact) / max(1.0, abs(exact))
            assert error < 1e-6, (case, name, i, measured, exact)
            worst = max(worst, error)
    print(f"finite differences: largest error {worst:.1e}")


def same_pass(what, a, b):
    """Two schemes agree in the logits and in the gradients they share."""
    close(what, a[0]["logits"], b[0]["logits"])
    for name in set(a[1]) & set(b[1]):
        close(f"{what}, {name}", a[0]["grad." + name], b[0]["grad." + name], 1e-11)


def equalities():
    alpha = schemes.deepnorm_alpha
    schemes.deepnorm_alpha = lambda stack: 1.0
    for stack in reference.STACKS:
        same_pass("deepnorm with alpha 1", tiny("deepnorm", stack), tiny("post", stack))
    schemes.deepnorm_alpha = alpha

    hosts = {"pre-gpas": "pre", "lns-gpas": "pre", "sandwich-gpas": "sandwich",
             "deepnorm-gpas": "deepnorm", "mix-ln-gpas": "mix-ln"}
    neutral = [(name, host, "g", 0.0) for name, host in hosts.items()]
    neutral += [("admin", "post", "omega", 1.0), ("layerscale", "pre", "lambda", 1.0),
                ("normformer-residual-scale", "normformer", "lambda", 1.0),
                ("rezero", "t-fixup", "a", 1.0)]
    for scheme, host, learned, value in neutral:
        for stack in reference.STACKS:
            if stack == "pair" and not schemes.SCHEMES[scheme].pair:
                continue
            _, names = tiny(scheme, stack)
            given = {name: torch.full_like(p, value) for name, p in names.items()
                     if ".learned." in name and name.split(".")[-1] == learned}
            assert given
            same_pass(f"{scheme} at {value}", tiny(scheme, stack, preset(given)), tiny(host, stack))

    reference.STEP = 3000
    same_pass("prores once grown", tiny("prores"), tiny("pre"))
    reference.STEP = 700
    rmsnorm_equals_layernorm()
    crmsnorm_equals_layernorm()
    print("equalities hold")


def rmsnorm_equals_layernorm():
    """Pre-RMSNorm is Pre-LN without norm biases on recentred matrices."""
    for stack in reference.STACKS:
        tensors, parameters = tiny("pre-rmsnorm", stack)
        added = ("embedding", "positions", "class_token", "patches.w", "patches.b",
                 ".wo", ".bo", ".w2", ".b2")
        values = {name: model.mean_off(p) if name.endswith(added) else p
                  for name, p in parameters.items()}
        _, names = tiny("pre", stack)
        values.update({name: torch.zeros_like(p) for name, p in names.items()
                       if name.endswith("norm.bias")})
        other, _ = tiny("pre", stack, preset(values))
        close("pre-rmsnorm", tensors["logits"], other["logits"])


def crmsnorm_equals_layernorm():
    """Pre-CRMSNorm is Pre-LN whose matrices write the sixth number and read it with weight 0."""
    for stack in reference.STACKS:
        tensors, parameters = tiny("pre-crmsnorm", stack)
        values = {}
        for name, p in parameters.items():
            if name.endswith("head"):
                p = torch.cat([p, torch.zeros(p.shape[0], 1, dtype=p.dtype)], 1)
            elif p.shape[-1] == 5:
                p = torch.cat([p, -p.sum(-1, keepdim=True)], -1)
            elif p.shape[0] == 5:
                p = torch.cat([p, torch.zeros(1, p.shape[1], dtype=p.dtype)], 0)
            values[name] = p
        _, names = tiny("pre", stack)
        for name, p in names.items():
            if name.endswith("norm.gain"):
                values[name] = torch.ones_like(p)
            elif name.endswith("norm.bias"):
                values[name] = torch.zeros_like(p)
        other, _ = tiny("pre", stack, preset(values))
        close("pre-crmsnorm", tensors["logits"], other["logits"])


def torch_parts():
    """Post-LN encoder blocks and the parts against PyTorch's own, with as many keys as queries."""
    config = reference.configuration(dict(stack="encoder", kv_heads=2))
    tensors, p = reference.compute("post", config)
    x = tensors["stream.embed.x"]
    for l in range(1, 4):
        layer = torch.nn.TransformerEncoderLayer(6, 2, 8, 0.0, "gelu", batch_first=True).double()
        get = lambda name: p[f"blocks.{l}.{name}"].detach()
        state = {
            "self_attn.in_proj_weight": torch.cat([get("attn.w" + n).T for n in "qkv"]),
            "self_attn.in_proj_bias": torch.cat([get("attn.b" + n) for n in "qkv"]),
            "self_attn.out_proj.weight": get("attn.wo").T, "self_attn.out_proj.bias": get("attn.bo"),
            "linear1.weight": get("ffn.w1").T, "linear1.bias": get("ffn.b1"),
            "linear2.weight": get("ffn.w2").T, "linear2.bias": get("ffn.b2"),
            "norm1.weight": get("attn.residual_norm.gain"),
            "norm1.bias": get("attn.residual_norm.bias"),
            "norm2.weight": get("ffn.residual_norm.gain"),
            "norm2.bias": get("ffn.residual_norm.bias"),
        }
        layer.load_state_dict(state)
        x = layer(x)
        close(f"block {l}", x, tensors[f"stream.blocks.{l}.x"])
    wanted = reference.targets("encoder").reshape(-1)
    loss = F.cross_entropy(tensors["logits"].reshape(-1, 7), wanted, ignore_index=-1,
                           reduction="sum")
    close("loss", loss, tensors["loss"][0])
    assert [model.fnv1a(t) for t in ("", "a", "foobar")] == [0x811C9DC5, 0xE40C292C, 0xBF9CF968]
    a = torch.arange(12, dtype=torch.float64).reshape(1, 1, 2, 6).sin()
    turned = torch.view_as_complex(torch.stack([a[..., :3], a[..., 3:]], -1))
    angles = torch.tensor([[p * 10000 ** (-2 * i / 6) for i in range(3)] for p in range(2)],
                          dtype=torch.float64)
    turned = turned * torch.polar(torch.ones_like(angles), angles)
    close("rotary", model.rotary(a), torch.cat([turned.real, turned.imag], -1))
    print("parts agree with PyTorch's")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch_parts()
    equalities()
    finite_differences()
