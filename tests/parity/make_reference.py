#!/usr/bin/env python3
"""Writes what tiny random decoders give in Hugging Face transformers (CPU, f32): loss, gradients, five AdamW steps.

Needs an environment of its own (python3 -m venv, pip install torch transformers); nothing in the build or the tests
uses it: the tests read the files. Invariant: the same seed and the same versions write the same bytes.

    tests/parity/make_reference.py --out tests/parity
"""
import argparse
import json
import os
import pathlib
import platform

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import safetensors
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file

SEED = 20250
BATCH = 2
STEPS = 5
IGNORED = -100
CLIP = 1.0
LEARNING_RATE, BETAS, EPSILON, DECAY = 1e-3, (0.9, 0.95), 1e-8, 0.1

# Small enough for the repository, odd enough for every tail: sizes that are no multiple of a vector. Frequencies of scaled
# positions fall on both sides of every boundary (theta is low because a head of 16 has only eight of them), and the
# sequence is longer than the original positions. `spread` is the deviation of embeddings and head, and with them of logits
# and gradients; a small `head_spread` keeps one model's gradient norm below the clipping threshold,
# and an `eps` as large as 0.05 shows whether it is read.
MODELS = {
    "qwen3_tied": dict(
        type="qwen3", tied=True, hidden=32, heads=4, kv_heads=2, head_dim=16, mlp=56, vocab=67, seq=53, spread=0.5,
        rope={"rope_type": "default", "rope_theta": 10000.0}),
    "qwen3_untied": dict(
        type="qwen3", tied=False, hidden=40, heads=2, kv_heads=1, head_dim=16, mlp=28, vocab=69, seq=40, spread=0.8,
        rope={"rope_type": "default", "rope_theta": 1000000.0}),
    "llama_tied": dict(
        type="llama", tied=True, hidden=32, heads=4, kv_heads=4, head_dim=8, mlp=28, vocab=71, seq=47, spread=0.3,
        rope={"rope_type": "default", "rope_theta": 10000.0}),
    "llama_untied_gqa": dict(
        type="llama", tied=False, hidden=32, heads=4, kv_heads=1, head_dim=8, mlp=36, vocab=67, seq=61, spread=0.8,
        head_spread=0.05, eps=1e-5, rope={"rope_type": "default", "rope_theta": 500000.0}),
    "llama_llama3": dict(
        type="llama", tied=True, hidden=32, heads=2, kv_heads=1, head_dim=16, mlp=20, vocab=67, seq=70, spread=0.5,
        rope={"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0, "original_max_position_embeddings": 32}),
    "qwen3_yarn": dict(
        type="qwen3", tied=True, hidden=32, heads=2, kv_heads=1, head_dim=16, mlp=20, vocab=67, seq=67, spread=0.5,
        rope={"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 32}),
    "llama_linear": dict(
        type="llama", tied=True, hidden=32, heads=2, kv_heads=1, head_dim=16, mlp=20, vocab=67, seq=64, spread=0.5,
        eps=0.05, rope={"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}),
}

# Settings of models that people use; factors and lengths differ so that no two of them can be mixed up.
ROPES = {
    "none": (8192, {"rope_type": "default", "rope_theta": 10000.0}),
    "none_high_theta": (40960, {"rope_type": "default", "rope_theta": 1000000.0}),
    "linear": (16384, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    "llama3": (131072, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    "llama3_factor_32": (131072, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
                                  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    "yarn": (131072, {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0,
                      "original_max_position_embeddings": 32768}),
    "yarn_betas": (65536, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "beta_fast": 16.0,
                           "beta_slow": 2.0, "original_max_position_embeddings": 4096}),
    "yarn_attention_factor_untruncated": (
        131072, {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "attention_factor": 1.25,
                 "truncate": False, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}),
}


def make_config(shape, layers, max_positions):
    cls = {"qwen3": transformers.Qwen3Config, "llama": transformers.LlamaConfig}[shape["type"]]
    return cls(
        vocab_size=shape["vocab"], hidden_size=shape["hidden"], intermediate_size=shape["mlp"],
        num_hidden_layers=layers, num_attention_heads=shape["heads"], num_key_value_heads=shape["kv_heads"],
        head_dim=shape["head_dim"], max_position_embeddings=max_positions, rms_norm_eps=shape.get("eps", 1e-6),
        tie_word_embeddings=shape["tied"], rope_parameters=dict(shape["rope"]), use_cache=False,
        bos_token_id=None, eos_token_id=None, attn_implementation="eager")


def randomise(model, shape, generator):
    # Norm weights away from one, or a norm whose weight is forgotten would pass.
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5, generator=generator)
            else:
                spread = parameter.shape[1] ** -0.5
                if "embed_tokens" in name:
                    spread = shape["spread"]
                elif "lm_head" in name:
                    spread = shape.get("head_spread", shape["spread"])
                parameter.normal_(0.0, spread, generator=generator)


def make_batch(shape, generator):
    tokens = torch.randint(shape["vocab"], (BATCH, shape["seq"]), generator=generator)  # [batch, seq]
    labels = torch.cat([tokens[:, 1:], torch.full((BATCH, 1), IGNORED)], dim=1)
    for row in labels:
        row[torch.randperm(shape["seq"] - 1, generator=generator)[:4]] = IGNORED
    return tokens, labels


def loss_of(model, tokens, labels):
    logits = model(input_ids=tokens).logits  # [batch, seq, vocab]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED), logits


def train(model, tokens, labels):
    """Five steps on one batch: what is seen before the first one, losses and gradient norms before each, weights after."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    norms = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": norms, "weight_decay": 0.0}],
        lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, foreach=False)
    losses, gradient_norms, first = [], [], {}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, logits = loss_of(model, tokens, labels)
        loss.backward()
        if step == 0:
            first["logits"] = logits[0, :8].detach().clone()
            first.update({"grad." + name: p.grad.clone() for name, p in model.named_parameters()})
        losses.append(loss.detach())
        gradient_norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP))
        optimizer.step()
    return {
        **first,
        "loss": losses[0].reshape(1),
        "loss_after": torch.stack(losses),
        "grad_norm": torch.stack(gradient_norms),
        **{"after." + name: p.detach().clone() for name, p in model.named_parameters()},
    }


def widen(model):
    """The same model in f64 throughout: transformers' norms and rotary tables go through f32 whatever the dtype."""
    def norm(module, x):
        return module.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)

    def rotary(module, x, position_ids):
        angles = position_ids[..., None].double() * frequencies
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos() * module.attention_scaling, angles.sin() * module.attention_scaling

    frequencies = model.model.rotary_emb.inv_freq.double()
    model.double().set_attn_implementation("sdpa")
    for module in model.modules():
        name = type(module).__name__
        if name.endswith("RMSNorm"):
            module.forward = norm.__get__(module)
        elif name.endswith("RotaryEmbedding"):
            module.forward = rotary.__get__(module)
    return model


def largest_error(found, exact, prefix):
    """The largest of the tensors' relative errors, each |found - exact| / |exact| in the Euclidean norm."""
    return max(float((found[key].double() - exact[key]).norm() / exact[key].norm())
               for key in found if key.startswith(prefix))


def write_model(name, shape, seed, folder):
    generator = torch.Generator().manual_seed(seed)
    config = make_config(shape, layers=2, max_positions=128)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    randomise(model, shape, generator)
    tokens, labels = make_batch(shape, generator)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)

    exact_model = widen(transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train())
    initial = {"after." + key: p.detach().clone() for key, p in exact_model.named_parameters()}
    exact = train(exact_model, tokens, labels)
    reference = train(model, tokens, labels)
    moved = {key: exact[key] - initial[key] for key in initial}
    found_moved = {key: reference[key].double() - initial[key] for key in initial}
    errors = {
        "loss": largest_error(reference, exact, "loss"),
        "grad": largest_error(reference, exact, "grad."),
        "moved": largest_error(found_moved, moved, "after."),
    }
    assert errors["loss"] < 1e-5 and errors["grad"] < 1e-4 and errors["moved"] < 1e-2, (name, errors)

    reference["tokens"], reference["labels"] = tokens.int(), labels.int()
    save_file({key: value.contiguous() for key, value in reference.items()}, folder / "reference.safetensors")
    return {"loss": reference["loss_after"].tolist(), "grad_norm": reference["grad_norm"].tolist(), "error": errors}


def write_ropes(path):
    rows = []
    for kind, (max_positions, rope) in ROPES.items():
        for head_dim in (64, 128):
            shape = dict(type="llama", tied=True, hidden=2 * head_dim, heads=2, kv_heads=2, head_dim=head_dim, mlp=8,
                         vocab=8, rope=rope)
            config = make_config(shape, layers=1, max_positions=max_positions)
            table = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
            rows.append({
                "kind": kind, "head_dim": head_dim, "max_position_embeddings": max_positions, "rope_parameters": rope,
                "attention_scaling": float(table.attention_scaling),
                "inverse_frequencies": table.inv_freq.double().tolist(),
            })
    path.write_text('{"rows": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="gets rope.json and the folder reference")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the order of sums must not depend on the machine's cores
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.disable_progress_bar()
    reference = options.out / "reference"
    summary = {}
    for index, (name, shape) in enumerate(MODELS.items()):
        (reference / name).mkdir(parents=True, exist_ok=True)
        summary[name] = write_model(name, shape, SEED + index, reference / name)
        print(name, json.dumps(summary[name]))
    largest = [max(row["grad_norm"]) for row in summary.values()]
    assert max(largest) > CLIP > min(largest), "clipping has to bind in one model and to stay out of another"
    write_ropes(options.out / "rope.json")
    versions = {
        "python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__,
        "safetensors": safetensors.__version__, "seed": SEED,
        "adamw": {"lr": LEARNING_RATE, "betas": BETAS, "eps": EPSILON, "weight_decay_matrices": DECAY,
                  "weight_decay_norms": 0.0, "clip": CLIP, "steps": STEPS},
        "error_against_f64": {name: row["error"] for name, row in summary.items()},
    }
    (reference / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")


if __name__ == "__main__":
    main()
