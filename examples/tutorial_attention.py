"""Schedule an attention layer step by step, verify each step and measure what it gains: the code of docs/tutorial.md.

Run: python examples/tutorial_attention.py    (ROUNDS=30 before it measures longer)
"""

import math
import os
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.pattern import call_module

torch.set_num_threads(1)


class FirstSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(1024, 1024)
        self.k_proj = nn.Linear(1024, 1024)
        self.v_proj = nn.Linear(1024, 1024)
        self.dropout = nn.Dropout(0.1)
        self.n_heads = 16

    def permute_for_scores(self, x):
        new_shape = x.shape[:-1] + (self.n_heads, -1)  # noqa: RUF005
        x = x.view(new_shape)
        return x.permute(0, 2, 1, 3)

    def forward(self, hidden_states):
        q = self.permute_for_scores(self.q_proj(hidden_states))
        k = self.permute_for_scores(self.k_proj(hidden_states))
        v = self.permute_for_scores(self.v_proj(hidden_states))
        d_k = q.shape[-1]
        attn_score = torch.matmul(q, k.transpose(-2, -1)) / torch.sqrt(d_k)
        attn_probs = F.dropout(F.softmax(attn_score, dim=-1), 0.1)
        output = torch.matmul(attn_probs, v)
        output.permute(0, 2, 1, 3)
        output.view(output.shape[0], output.shape[1], -1)
        return output


class FirstProjection(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(1024, 1024)
        self.dropout = nn.Dropout(0.1)
        self.layer_norm = nn.LayerNorm(1024)

    def forward(self, hidden_states, input_tensor):
        hidden_states = self.dropout(self.dense(hidden_states))
        return self.layer_norm(hidden_states, input_tensor)


class FirstAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = FirstSelfAttention()
        self.proj = FirstProjection()

    def forward(self, hidden_states):
        return self.proj(self.self_attn(hidden_states), hidden_states)


def heads(x):
    x = call_module(r"[qkv]_proj", x)
    new_shape = x.shape[:-1] + (16, -1)  # noqa: RUF005
    x = x.view(new_shape)
    return x.permute(0, 2, 1, 3)


first = smelt.schedule(FirstAttention())
found = first.find(heads)
assert [match.path for match in found] == ["self_attn"] * 3
assert [match.nodes[0].scope for match in found] == ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
print(found[0])
print(first.notes[0])


class SelfAttention(FirstSelfAttention):
    def forward(self, hidden_states):
        q = self.permute_for_scores(self.q_proj(hidden_states))
        k = self.permute_for_scores(self.k_proj(hidden_states))
        v = self.permute_for_scores(self.v_proj(hidden_states))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        probs = self.dropout(F.softmax(scores, dim=-1))
        output = torch.matmul(probs, v).permute(0, 2, 1, 3)
        return output.reshape(hidden_states.shape)


class Projection(FirstProjection):
    def forward(self, hidden_states, input_tensor):
        hidden_states = self.dropout(self.dense(hidden_states))
        return self.layer_norm(hidden_states + input_tensor)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = SelfAttention()
        self.proj = Projection()

    def forward(self, hidden_states):
        return self.proj(self.self_attn(hidden_states), hidden_states)


torch.manual_seed(0)
model = Attention().eval()
x, few = torch.randn(1, 512, 1024), torch.randn(2, 24, 1024)
s = smelt.schedule(model, x)
plain = s.build()
built = {"untouched": plain}
with torch.no_grad():
    assert torch.equal(plain(x), model(x))

s.fuse_horizontal(s.find(heads), name="qkv")
s.fuse(s.find("qkv_0"), name="native_qkv", keep=True)
print(s.reports[-1])
print(s.verify(few))
built["1. fused QKV"] = s.build()
assert list(built["1. fused QKV"].state_dict()) == list(model.state_dict())


def core(q, k, v, *, scale: float):
    scores = torch.matmul(q, k.transpose(-2, -1)) / scale
    probs = call_module("dropout", F.softmax(scores, dim=-1))
    return torch.matmul(probs, v)


class FusedAttention(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, q, k, v, scale):
        p = self.p if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p, scale=1 / scale)


s.replace(FusedAttention(0.1), s.find(core))
print(s.verify(few))
built["2. fused attention"] = s.build()


def output(x, residual):
    return call_module("layer_norm", call_module("dropout", call_module("dense", x)) + residual)


s.fuse(s.find(output), name="output", keep=True)
print(s.reports[-1])
print(s.verify(few))
built["3. fused output"] = s.build()

s.compile()
print(s.verify(few))
built["4. compiled"] = s.build()
print(s)
print(s.log)


def measure(variants, x, rounds):
    """Processor time of one call in ms; each round runs every variant once, and a gain compares times of one round."""
    times = {name: [] for name in variants}
    with torch.no_grad():
        for number in range(rounds + 1):
            for name, variant in variants.items():
                start = time.thread_time()
                variant(x)
                if number:  # the first round compiles, and fills caches
                    times[name].append(1e3 * (time.thread_time() - start))
    first = next(iter(times.values()))
    for name, found in times.items():
        gain = statistics.median(a / b for a, b in zip(first, found, strict=True))
        print(f"{name:20} median {statistics.median(found):6.1f} ms   least {min(found):6.1f} ms   {gain:.2f}")


measure({**built, "smelt.compile alone": smelt.compile(model)}, x, rounds=int(os.environ.get("ROUNDS", "3")))
