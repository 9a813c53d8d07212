"""The parts every scheme shares: parameters, norms, attention, feed-forward, embedding, head.

Everything is float64. A `Stack` is one encoder or decoder; a scheme (schemes.py) says how the
outputs of its sublayers enter the residual stream. Parameters come into being when a forward pass
first asks for them: their value depends on nothing but their full name.
"""

import math

import torch

DEFAULTS = {
    "stack": "decoder", "blocks": 3, "decoder_blocks": 0, "width": 6, "heads": 2, "kv_heads": 1,
    "ffn_width": 8, "context": 4, "vocabulary": 7, "classes": 5, "image": 4, "patch": 2,
    "channels": 1, "norm": "layernorm", "qk_norm": "none", "positions": "learned",
    "activation": "gelu", "bias": True, "tied": False,
}
"""The tiny model. Further keys, present only where used: head_width, qkv_bias, embedding_width,
embedding_scale, embedding_norm, token_types, shared_blocks, output_transform, logit_bias."""

EPS = 1e-5


def fnv1a(text):
    """FNV-1a, 32 bits, of the UTF-8 text."""
    h = 0x811C9DC5
    for byte in text.encode("utf-8"):
        h = ((h ^ byte) * 0x01000193) & 0xFFFFFFFF
    return h


class Parameters(dict):
    """Name -> leaf tensor. `gain_base` is 0 where a norm stores its gain less one."""

    def __init__(self, gain_base=1.0):
        super().__init__()
        self.gain_base = gain_base

    def get(self, name, *shape):
        if name not in self:
            start = fnv1a(name) % 1000 + 1
            v = [math.sin(start + 0.7 * i) for i in range(math.prod(shape))]
            if len(shape) == 2:
                values = [0.4 * x for x in v]
            else:
                values = [self.base(name) + 0.3 * x for x in v]
            tensor = torch.tensor(values, dtype=torch.float64).reshape(shape)
            self[name] = tensor.requires_grad_()
        assert tuple(self[name].shape) == shape, (name, shape, self[name].shape)
        return self[name]

    def base(self, name):
        if name.endswith(".gain"):
            return self.gain_base
        if name.endswith((".alpha", ".head_scale")) or ".learned." in name:
            return 1.0
        return 0.0


def layernorm(x, eps):
    """Layer normalization, arXiv 1607.06450: biased variance, eps inside the root."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred ** 2).mean(-1, keepdim=True) + eps)


def rmsnorm(x, eps):
    """RMSNorm, arXiv 1910.07467."""
    return x / torch.sqrt((x ** 2).mean(-1, keepdim=True) + eps)


def crmsnorm(x, eps):
    """CRMSNorm, arXiv 2305.14858: x holds d-1 numbers of a zero-mean vector of d; the last one is
    minus their sum and is not stored."""
    d = x.shape[-1] + 1
    squares = (x ** 2).sum(-1, keepdim=True) + x.sum(-1, keepdim=True) ** 2
    return x / torch.sqrt(squares / d + eps)


def mean_off(x):
    """Takes the mean over the last dimension off."""
    return x - x.mean(-1, keepdim=True)


def rotary(x, base=10000.0):
    """Rotary positions, half-split form, x is [batch, heads, positions, head width]: entry i of
    the first half and of the second half turn by the angle p * base^(-2i/head width)."""
    positions, width = x.shape[-2:]
    i = torch.arange(width // 2, dtype=torch.float64)
    p = torch.arange(positions, dtype=torch.float64)
    angle = p[:, None] * base ** (-2 * i / width)
    a, b = x[..., :width // 2], x[..., width // 2:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def sinusoids(positions, width):
    """Vaswani 2017, section 3.5: element 2i is sin(p / 10000^(2i/d)), element 2i+1 its cosine."""
    table = torch.zeros(positions, width, dtype=torch.float64)
    for p in range(positions):
        for i in range(0, width, 2):
            table[p, i] = math.sin(p / 10000 ** (i / width))
            table[p, i + 1] = math.cos(p / 10000 ** (i / width))
    return table


def activation(kind, x):
    if kind == "gelu":
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    assert kind == "relu", kind
    return torch.relu(x)


def silu(x):
    return x * torch.sigmoid(x)


class Stack:
    """One encoder or decoder under one scheme.

    prefix: "" or, for a pair, "encoder." / "decoder."; causal, seen: what the self-attention may
    look at (`seen` is [batch, keys]); memory, memory_seen: the other stack's final output, which
    gives every block a cross-attention. The pass leaves its streams and sublayer outputs in
    `records`."""

    def __init__(self, scheme, config, parameters, records, prefix, blocks, causal,
                 seen=None, memory=None, memory_seen=None, pair=None, step=700):
        self.scheme, self.config, self.parameters = scheme, config, parameters
        self.records, self.prefix, self.causal, self.seen = records, prefix, causal, seen
        self.memory, self.memory_seen, self.step = memory, memory_seen, step
        self.blocks = blocks
        self.pair = pair  # None or (encoder blocks, decoder blocks)
        self.kind = scheme.norm or config["norm"]
        self.qk_norm = scheme.qk_norm or config["qk_norm"]
        # A stream under CRMSNorm stores one number less than its width.
        self.width = config["width"] - (self.kind == "crmsnorm")
        self.head_width = config.get("head_width", config["width"] // config["heads"])

    def get(self, name, *shape):
        return self.parameters.get(self.prefix + name, *shape)

    def norm(self, name, x, kind=None, eps=EPS):
        """The norm of the given name; every kind has its own parameters."""
        kind, width = kind or self.kind, x.shape[-1]
        if kind == "none":
            return x
        if kind == "crmsnorm":
            return crmsnorm(x, eps)
        if kind == "bare_rmsnorm":
            return rmsnorm(x, eps)
        gain = self.get(name + ".gain", width)
        if kind == "layernorm":
            return gain * layernorm(x, eps) + self.get(name + ".bias", width)
        if kind == "layernorm_no_bias":
            return gain * layernorm(x, eps)
        if kind == "rmsnorm":
            return gain * rmsnorm(x, eps)
        if kind == "rmsnorm_one_plus":  # Gemma: the stored gain is the gain less one
            return (1 + gain) * rmsnorm(x, eps)
        assert kind == "dyt", kind  # arXiv 2503.10622
        alpha = self.get(name + ".alpha", 1)
        return gain * torch.tanh(alpha * x) + self.get(name + ".bias", width)

    def linear(self, x, w, b, outputs, bias, recentre=False):
        """x W + b; `recentre` takes the mean over the outputs off W and b."""
        weight = self.get(w, x.shape[-1], outputs)
        y = x @ (mean_off(weight) if recentre else weight)
        if bias:
            offset = self.get(b, outputs)
            y = y + (mean_off(offset) if recentre else offset)
        return y

    def attention(self, name, x, cross):
        """Multi-head attention with grouped keys and values: query head i reads key and value
        head i * kv_heads // heads."""
        c, width = self.config, self.head_width
        heads, kv_heads = c["heads"], c["kv_heads"]
        source = self.memory if cross else x
        seen = self.memory_seen if cross else self.seen
        bias = c.get("qkv_bias", c["bias"])
        qk_norm = "none" if cross else self.qk_norm

        def project(letter, title, source, heads, norm):
            y = self.linear(source, f"{name}.w{letter}", f"{name}.b{letter}", heads * width, bias)
            kind = "bare_rmsnorm" if self.kind == "crmsnorm" else None
            if norm == "full_width":
                y = self.norm(f"{name}.{title}_norm", y, kind)
            y = y.reshape(*y.shape[:-1], heads, width)
            if norm == "per_head":
                y = self.norm(f"{name}.{title}_norm", y, kind)
            return y.transpose(1, 2)

        q = project("q", "query", x, heads, qk_norm)
        k = project("k", "key", source, kv_heads, qk_norm)
        v = project("v", "value", source, kv_heads, "per_head" if self.scheme.value_norm else None)
        if c["positions"] == "rotary" and not cross:
            q, k = rotary(q), rotary(k)
        shared = [i * kv_heads // heads for i in range(heads)]
        scores = q @ k[:, shared].transpose(-1, -2) / math.sqrt(width)
        if self.causal and not cross:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, -math.inf)
        if seen is not None:
            scores = scores.masked_fill(~seen[:, None, None, :], -math.inf)
        y = torch.softmax(scores, -1) @ v[:, shared]
        if self.scheme.head_scale and not cross:
            y = y * self.get(name + ".head_scale", heads)[:, None, None]
        y = y.transpose(1, 2).reshape(*x.shape[:-1], heads * width)
        if self.scheme.attn_inner_norm and not cross:
            y = self.norm(name + ".inner_norm", y)
        return self.linear(y, name + ".wo", name + ".bo", self.width, c["bias"],
                           self.scheme.recentre)

    def feed_forward(self, name, x):
        """w2 act(x w1), or w2 (silu(x wg) * (x w1)) for SwiGLU (arXiv 2002.05202)."""
        c = self.config
        h = self.linear(x, name + ".w1", name + ".b1", c["ffn_width"], c["bias"])
        if c["activation"] == "swiglu":
            gate = self.linear(x, name + ".wg", name + ".bg", c["ffn_width"], c["bias"])
            h = silu(gate) * h
        else:
            h = activation(c["activation"], h)
        if self.scheme.ffn_inner_norm:
            h = self.norm(name + ".inner_norm", h)
        return self.linear(h, name + ".w2", name + ".b2", self.width, c["bias"],
                           self.scheme.recentre)

    def embedding_name(self):
        """A tied pair has one table for source, target and head."""
        shared = self.config["stack"] == "pair" and self.config["tied"]
        return "encoder.embedding" if shared else self.prefix + "embedding"

    def embedding_width(self):
        return self.config.get("embedding_width", self.width)

    def table(self):
        return self.parameters.get(self.embedding_name(), self.config["vocabulary"],
                                   self.embedding_width())

    def embed_tokens(self, tokens):
        """Row (times sqrt(width) if so configured) + position + token type 0, normed, widened."""
        c, width = self.config, self.embedding_width()
        off = mean_off if self.scheme.recentre else lambda t: t
        x = off(self.table())[tokens]
        length = tokens.shape[1]
        if c.get("embedding_scale"):
            x = x * math.sqrt(c["width"])
        if c["positions"] == "learned":
            x = x + off(self.get("positions", c["context"], width))[:length]
        elif c["positions"] == "sinusoidal":
            x = x + sinusoids(length, width)
        if c.get("token_types"):
            x = x + self.get("token_types", c["token_types"], width)[0]
        if c.get("embedding_norm"):
            x = self.norm("embedding_norm", x)
        if width != self.width:
            x = self.linear(x, "widening.w", "widening.b", self.width, True)
        return x

    def embed_patches(self, pixels):
        """Patches projected, class token in front, positions added (ViT, arXiv 2010.11929)."""
        off = mean_off if self.scheme.recentre else lambda t: t
        patches = self.linear(pixels, "patches.w", "patches.b", self.width, True,
                              self.scheme.recentre)
        first = off(self.get("class_token", 1, self.width))
        first = first.expand(pixels.shape[0], 1, self.width)
        x = torch.cat([first, patches], 1)
        return x + off(self.get("positions", pixels.shape[1] + 1, self.width))

    def answers(self, h):
        """The logits: h head^T, h embedding^T when tied, after BERT's output transform if any."""
        c = self.config
        if c.get("output_transform"):
            h = self.linear(h, "head.transform.w", "head.transform.b", self.embedding_width(), True)
            h = self.norm("head.transform.norm", activation(c["activation"], h))
        count = c["classes"] if c["stack"] == "vision" else c["vocabulary"]
        matrix = self.table() if c["tied"] else self.parameters.get("head", count, h.shape[-1])
        logits = h @ matrix.T
        if c.get("logit_bias"):
            logits = logits + self.parameters.get("head.bias", count)
        return logits

    def record(self, site, streams):
        for name, value in streams.items():
            self.records[f"stream.{self.prefix}{site}.{name}"] = value

    def run(self, embedded):
        """The embedding rule, all blocks and the head rule of the scheme; the stack's output."""
        streams = self.scheme.embed(self, embedded)
        self.record("embed", streams)
        self.history = [streams]  # streams after the embedding rule and after every block so far
        for l in range(1, self.blocks + 1):
            streams = self.scheme.block(Block(self, l), streams)
            self.record(f"blocks.{l}", streams)
            self.history.append(streams)
        return self.scheme.head(self, streams)


class Block:
    """Block l (from 1) of a stack, with its sublayers attn, cross (or None) and ffn."""

    def __init__(self, stack, l):
        self.stack, self.l = stack, l
        self.site = f"blocks.{l}"
        shared = stack.config.get("shared_blocks")  # ALBERT: one block's parameters for all
        self.name = "blocks.1" if shared else self.site
        self.attn, self.ffn = Sublayer(self, "attn"), Sublayer(self, "ffn")
        self.cross = Sublayer(self, "cross") if stack.memory is not None else None
        self.sublayers = [s for s in (self.attn, self.cross, self.ffn) if s]

    def norm(self, name, x):
        return self.stack.norm(f"{self.name}.{name}", x)

    def learned(self, name, size):
        return self.stack.get(f"{self.name}.learned.{name}", size)


class Sublayer:
    """Calling it runs the bare attention, cross-attention or feed-forward."""

    def __init__(self, block, kind):
        self.block, self.stack, self.l, self.kind = block, block.stack, block.l, kind
        self.name = f"{block.name}.{kind}"

    def __call__(self, x):
        if self.kind == "ffn":
            y = self.stack.feed_forward(self.name, x)
        else:
            y = self.stack.attention(self.name, x, cross=self.kind == "cross")
        self.stack.records[f"out.{self.stack.prefix}{self.block.site}.{self.kind}"] = y
        return y

    def norm(self, name, x):
        return self.stack.norm(f"{self.name}.{name}", x)

    def learned(self, name):
        return self.block.learned(f"{self.kind}.{name}", self.stack.width)

    def gate(self, x):
        """Highway's transform gate, sigmoid(x W + b)."""
        return torch.sigmoid(self.stack.linear(x, self.name + ".gate.w", self.name + ".gate.b",
                                               self.stack.width, True))
