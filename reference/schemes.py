"""The residual and normalization schemes, one small function each, from the papers' equations.

f(x) is the bare sublayer (attention, cross-attention or feed-forward). A rule marked `@sublayers`
says how one sublayer changes the single stream x; a rule marked `@blocks` treats a whole block
and all streams. N without a name is the norm of the model's kind. l counts blocks from 1, L is the
number of blocks of the stack.

Names of norms: input_norm stands before one sublayer, output_norm on a sublayer's bare output,
residual_norm on a sum; norm is a norm of the stream that does not feed one sublayer alone.
"""

import math
from dataclasses import dataclass
from typing import Callable, Optional

import torch

from model import silu


# The head rules: what the stack's output is.

def last(stack, streams):
    """The stream as it is."""
    return streams["x"]


def final_norm(stack, streams):
    """One more norm of the stream."""
    return stack.norm("head.norm", streams["x"])


# The embedding rules: what the streams start from.

def as_it_is(stack, e):
    return {"x": e}


def embedding_norm(stack, e):
    return {"x": stack.norm("embed.norm", e)}


def both_streams(stack, e):
    return {"x": e, "y": e}


@dataclass
class Scheme:
    name: str
    block: Callable
    head: Callable = last
    embed: Callable = as_it_is
    norm: Optional[str] = None  # the norm kind the scheme prescribes
    qk_norm: Optional[str] = None  # norms of queries and keys the scheme prescribes
    value_norm: bool = False  # per-head norm of the values
    head_scale: bool = False
    attn_inner_norm: bool = False  # on the joined heads, before the output projection
    ffn_inner_norm: bool = False  # after the activation, before the second matrix
    recentre: bool = False  # whatever is added to the stream has its mean taken off
    pair: bool = True  # has a published form for an encoder-decoder pair


SCHEMES = {}


def blocks(name, **options):
    def register(rule):
        SCHEMES[name] = Scheme(name, rule, **options)
        return rule
    return register


def each_sublayer(rule):
    def block(b, streams):
        x = streams["x"]
        for f in b.sublayers:
            x = rule(f, x)
        return {"x": x}
    return block


def sublayers(name, **options):
    def register(rule):
        SCHEMES[name] = Scheme(name, each_sublayer(rule), **options)
        return rule
    return register


# Post-LN and its relatives.

@sublayers("post")
@sublayers("lipschitz", embed=embedding_norm)
def post(f, x):
    """Post-LN, Vaswani et al. 2017, arXiv 1706.03762. Xu et al. 2020, arXiv 1911.03179, differs
    in the initial values and in a norm on the embedding."""
    return f.norm("residual_norm", x + f(x))


@sublayers("plain")
def plain(f, x):
    """No residual connection at all."""
    return f.norm("output_norm", f(x))


def deepnorm_alpha(stack):
    """DeepNet, arXiv 2203.00555, table 'constants': N encoder blocks, M decoder blocks."""
    if stack.pair is None:
        return (2 * stack.blocks) ** 0.25
    n, m = stack.pair
    return 0.81 * (n ** 4 * m) ** (1 / 16) if stack.prefix == "encoder." else (3 * m) ** 0.25


@sublayers("deepnorm")
def deepnorm(f, x):
    """DeepNorm, arXiv 2203.00555."""
    return f.norm("residual_norm", deepnorm_alpha(f.stack) * x + f(x))


def shrunk_embedding(stack, e):
    """GLM-130B: the gradient of the embedding is shrunk to a tenth, the value unchanged."""
    return {"x": stack.norm("embed.residual_norm", 0.1 * e + 0.9 * e.detach())}


@sublayers("glm-deepnorm", embed=shrunk_embedding, pair=False)
def glm_deepnorm(f, x):
    """GLM-130B, arXiv 2210.02414: DeepNorm with alpha = (2L)^(1/2) and a norm on the embedding."""
    return f.norm("residual_norm", (2 * f.stack.blocks) ** 0.5 * x + f(x))


@sublayers("admin")
def admin(f, x):
    """Admin, arXiv 2004.08249: a learned vector on the shortcut, one a sublayer."""
    return f.norm("residual_norm", f.learned("omega") * x + f(x))


@sublayers("admin-constant")
def admin_constant(f, x):
    """admin-torch, output change O(log n): n residual sublayers in the stack."""
    n = len(f.block.sublayers) * f.stack.blocks
    omega = math.sqrt((n + 1) / math.log(n + 1) - 1)
    return f.norm("residual_norm", omega * x + f(x))


@blocks("b2t")
def b2t(b, streams):
    """B2T connection, arXiv 2206.00330: Post-LN whose last norm of a block also gets the block's
    input."""
    x = y = streams["x"]
    for f in b.sublayers[:-1]:
        y = f.norm("residual_norm", y + f(y))
    return {"x": b.ffn.norm("residual_norm", x + y + b.ffn(y))}


# Pre-LN and its relatives.

@sublayers("pre", head=final_norm)
@sublayers("pre-scaled-init", head=final_norm)
@sublayers("sub-ln", head=final_norm, attn_inner_norm=True, ffn_inner_norm=True)
@sublayers("pre-rmsnorm", head=final_norm, norm="rmsnorm", recentre=True)
@sublayers("pre-crmsnorm", head=final_norm, norm="crmsnorm")
def pre(f, x):
    """Pre-LN, GPT-2 and arXiv 2002.04745; the GPT-2 depth factor is in the initial values alone.
    Sub-LN (Magneto), arXiv 2210.06423: two more norms inside the sublayers, cross-attention has
    none. Pre-RMSNorm and Pre-CRMSNorm, arXiv 2305.14858: a zero-mean stream."""
    return x + f(f.norm("input_norm", x))


@sublayers("lns", head=final_norm)
def lns(f, x):
    """LayerNorm Scaling, arXiv 2502.05795, equation 12."""
    return x + f(f.norm("input_norm", x) / math.sqrt(f.l))


@sublayers("layerscale", head=final_norm)
def layerscale(f, x):
    """LayerScale (CaiT), arXiv 2103.17239."""
    return x + f.learned("lambda") * f(f.norm("input_norm", x))


@sublayers("prores", head=final_norm)
def prores(f, x):
    """ProRes, arXiv 2603.05369, on Pre-LN: a(l, t) = min(t / (1000 l), 1) at step t."""
    return x + min(f.stack.step / (1000 * f.l), 1.0) * f(f.norm("input_norm", x))


def normformer_sublayer(f, x, shortcut):
    y = f(f.norm("input_norm", x))
    return shortcut * x + (f.norm("output_norm", y) if f.kind == "attn" else y)


NORMFORMER = dict(head=final_norm, head_scale=True, ffn_inner_norm=True, pair=False)


@sublayers("normformer", **NORMFORMER)
def normformer(f, x):
    """NormFormer, arXiv 2110.09456: a norm after the attention, head scales before W_O (the
    paper's place, not fairseq's), a norm inside the feed-forward."""
    return normformer_sublayer(f, x, 1.0)


@sublayers("normformer-residual-scale", **NORMFORMER)
def normformer_residual_scale(f, x):
    """NormFormer with ResScale: a learned vector on the feed-forward's shortcut."""
    scale = f.block.learned("lambda", f.stack.width) if f.kind == "ffn" else 1.0
    return normformer_sublayer(f, x, scale)


@blocks("parallel", head=final_norm, pair=False)
def parallel(b, streams):
    """GPT-J and PaLM (arXiv 2204.02311): one norm feeds both sublayers."""
    x = streams["x"]
    n = b.norm("norm", x)
    return {"x": x + b.attn(n) + b.ffn(n)}


@blocks("parallel-two-norms", head=final_norm, pair=False)
def parallel_two_norms(b, streams):
    """GPT-NeoX-20B, arXiv 2204.06745: each sublayer has its own norm of the same x."""
    x = streams["x"]
    return {"x": x + b.attn(b.attn.norm("input_norm", x)) + b.ffn(b.ffn.norm("input_norm", x))}


# Norms on the branch output.

@sublayers("sandwich", head=final_norm)
@sublayers("peri", head=final_norm)
@sublayers("peri-embedding-norm", head=final_norm, embed=embedding_norm)
def peri(f, x):
    """Sandwich-LN (CogView), arXiv 2105.13290, and Peri-LN, arXiv 2502.02732."""
    return x + f.norm("output_norm", f(f.norm("input_norm", x)))


@sublayers("output-norm", head=final_norm, qk_norm="full_width")
def output_norm(f, x):
    """OLMo 2, arXiv 2501.00656: output norm alone, queries and keys normed over their full
    width."""
    return x + f.norm("output_norm", f(x))


# No norms.

@sublayers("t-fixup")
def t_fixup(f, x):
    """T-Fixup, Huang et al. 2020: the initial values do it all."""
    return x + f(x)


@sublayers("rezero")
def rezero(f, x):
    """ReZero, arXiv 2003.04887: one learned factor a block."""
    return x + f.block.learned("a", 1) * f(x)


@sublayers("highway")
def highway(f, x):
    """Highway networks, arXiv 1505.00387, with the sublayer as H."""
    t = f.gate(x)
    return t * f(x) + (1 - t) * x


# Mixtures of Pre- and Post-LN.

def mix_ln_post_blocks(stack):
    """A quarter of the blocks, rounded, halves to even."""
    return round(stack.blocks / 4)


@sublayers("mix-ln", head=final_norm)
def mix_ln(f, x):
    """Mix-LN, arXiv 2412.13795: the first quarter of the blocks Post-LN, the others Pre-LN."""
    return post(f, x) if f.l <= mix_ln_post_blocks(f.stack) else pre(f, x)


HYBRIDNORM = dict(head=final_norm, qk_norm="per_head", value_norm=True, pair=False)


@blocks("hybridnorm", **HYBRIDNORM)
def hybridnorm(b, streams):
    """HybridNorm, arXiv 2503.04598: norms of queries, keys and values; one norm before the
    feed-forward whose output is its shortcut too."""
    x = streams["x"]
    n = b.attn.norm("norm", x + b.attn(x))
    return {"x": n + b.ffn(n)}


@blocks("hybridnorm-star", **HYBRIDNORM)
def hybridnorm_star(b, streams):
    """HybridNorm*: the first block is Pre-LN, with the norms of queries, keys and values."""
    return each_sublayer(pre)(b, streams) if b.l == 1 else hybridnorm(b, streams)


def keel_sublayer(f, x):
    alpha = 2 * f.stack.blocks
    return f.norm("residual_norm", alpha * x + f(f.norm("input_norm", x)))


@sublayers("keel", pair=False)
def keel(f, x):
    """Keel, arXiv 2601.19895 version 2: alpha is the number of sublayers; in the first block
    alpha is 1 and the attention has no outer norm."""
    if f.l > 1:
        return keel_sublayer(f, x)
    y = pre(f, x)
    return y if f.kind == "attn" else f.norm("residual_norm", y)


@sublayers("keel-v1", pair=False)
def keel_v1(f, x):
    """Keel, version 1: the first block is plain Pre-LN."""
    return pre(f, x) if f.l == 1 else keel_sublayer(f, x)


@blocks("spannorm", pair=False)
def spannorm(b, streams):
    """SpanNorm, arXiv 2601.22580: the feed-forward's shortcut starts at the block's input; the
    first attention has a norm before it."""
    x = streams["x"]
    inner = b.attn.norm("input_norm", x) if b.l == 1 else x
    y = b.attn.norm("residual_norm", x + b.attn(inner))
    return {"x": b.ffn.norm("residual_norm", x + b.ffn(y))}


# Two streams, or all earlier blocks.

def residual_embed(stack, e):
    return {"u": e, "r": e}


def residual_head(stack, streams):
    return streams["u"] + stack.norm("head.r_norm", streams["r"], eps=1e-7)


@blocks("residual", embed=residual_embed, head=residual_head)
def residual(b, streams):
    """ResiDual, arXiv 2304.14802: a Post-LN stream u and a sum r of all sublayer outputs."""
    u, r = streams["u"], streams["r"]
    for f in b.sublayers:
        o = f(u)
        r = r + o
        u = f.norm("residual_norm", o + u)
    return {"u": u, "r": r}


def siamese_head(stack, streams):
    return streams["x"] + stack.norm("head.y_norm", streams["y"])


@blocks("siamese", embed=both_streams, head=siamese_head, pair=False)
def siamese(b, streams):
    """SiameseNorm, arXiv 2602.08064, algorithm 1, with the depth-wise scaling 1/sqrt(l+1) of what
    enters X, without the further norm of the sublayers' input."""
    x, y = streams["x"], streams["y"]
    for f in b.sublayers:
        o = f(x + f.norm("y_norm", y))
        x = f.norm("residual_norm", x + o / math.sqrt(b.l + 1))
        y = y + o
    return {"x": x, "y": y}


def siamese_code_head(stack, streams):
    x, y = stack.norm("head.x_norm", streams["x"]), stack.norm("head.y_norm", streams["y"])
    return stack.norm("head.residual_norm", x + y)


@blocks("siamese-code", embed=both_streams, head=siamese_code_head, qk_norm="per_head",
        value_norm=True, pair=False)
def siamese_code(b, streams):
    """SiameseNorm as its language-model code has it (HybridNorm as X, Pre-LN as Y)."""
    x, y = streams["x"], streams["y"]
    c = math.sqrt(2 * b.l)
    r = b.attn(b.learned("c1", b.stack.width) * x + b.attn.norm("y_norm", y))
    x = b.attn.norm("residual_norm", x + r / c)
    y = y + r
    z = b.ffn(b.ffn.norm("residual_norm", x + b.ffn.norm("y_norm", y)))
    return {"x": x + z / c, "y": y + z}


def combination(stack, weights):
    """DLCL: the weighted sum of the embedding and of all block outputs so far."""
    return sum(w * streams["x"] for w, streams in zip(weights, stack.history))


def dlcl_head(stack, streams):
    x = combination(stack, stack.get("head.learned.w", stack.blocks + 1))
    return stack.norm("head.residual_norm", x)


@blocks("dlcl-pre", head=dlcl_head)
def dlcl_pre(b, streams):
    """DLCL, arXiv 1906.01787, pre-norm: block l reads sum_k w[l,k] LN_k(y_k); the stream holds
    LN_k(y_k), normed once where it is produced (the embedding is not)."""
    x = combination(b.stack, b.learned("w", b.l))
    y = each_sublayer(pre)(b, {"x": x})["x"]
    return {"x": b.norm("norm", y)}


@blocks("dlcl-post", head=dlcl_head)
def dlcl_post(b, streams):
    """DLCL, post-norm: block l reads LN(sum_k w[l,k] y_k), the first one w[1,0] y_0 unnormed."""
    x = combination(b.stack, b.learned("w", b.l))
    if b.l > 1:
        x = b.norm("residual_norm", x)
    return each_sublayer(post)(b, {"x": x})


# GPAS, arXiv 2506.22049.

def gpas(f, x):
    """G(x) = x - silu(g) sg(x): scales the value, leaves the gradient. One gate a block."""
    return x - silu(f.block.learned("g", 1)) * x.detach()


@sublayers("pre-gpas", head=final_norm)
@sublayers("lns-gpas", head=final_norm)
def pre_gpas(f, x):
    """GPAS on Pre-LN. On LNS: in the authors' code 1/sqrt(l) is only the initial gain."""
    return gpas(f, pre(f, x))


@sublayers("sandwich-gpas", head=final_norm)
def sandwich_gpas(f, x):
    return gpas(f, peri(f, x))


@sublayers("deepnorm-gpas", pair=False)
def deepnorm_gpas(f, x):
    """Only the shortcut passes the gate."""
    return f.norm("residual_norm", deepnorm_alpha(f.stack) * gpas(f, x) + f(x))


@sublayers("mix-ln-gpas", head=final_norm)
def mix_ln_gpas(f, x):
    """Post blocks: the shortcut passes the gate; Pre blocks as pre-gpas."""
    if f.l <= mix_ln_post_blocks(f.stack):
        return f.norm("residual_norm", gpas(f, x) + f(x))
    return pre_gpas(f, x)
