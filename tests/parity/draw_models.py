#!/usr/bin/env python3
"""Draws small random decoders anew, every setting of them, and writes what transformers makes of their files.

Each folder of OUT/drawn holds config.json and weights in one of the forms that are found in the wild (either form of
rope, shards, three types of weights, ties that are and are not), and reference.safetensors: micro-batches of packed
documents with their labels, and the losses, gradients and weights of a few AdamW steps on them, read from those very
files by transformers (CPU, f32). A step's loss is the mean over all labelled tokens of its micro-batches.

    tests/parity/draw_models.py --out build/parity --count 30 [--seed N]
"""
import argparse
import json
import math
import pathlib
import random
import shutil

import make_reference as fixed
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file

STEPS = 3
# An epsilon that gradients of rounding alone do not reach, so that they do not choose where a weight goes.
LEARNING_RATE, BETAS, EPSILON, DECAY = 1e-3, (0.9, 0.95), 1e-3, 0.1
WEIGHT_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def chance(draw, probability):
    return draw.random() < probability


def draw_shape(draw, kind):
    heads_kv = draw.randint(1, 3)
    heads = heads_kv * draw.randint(1, 3)
    head_dim = draw.choice([8, 16, 24, 40])
    config = {
        "model_type": kind,
        "vocab_size": draw.randint(37, 131),
        # Not fewer than 16: a norm of a few numbers multiplies what is rounded.
        "hidden_size": heads * draw.randint(-(-16 // heads), 61 // heads) if kind == "llama" else draw.randint(17, 61),
        "intermediate_size": draw.randint(11, 73),
        "num_hidden_layers": draw.randint(1, 3),
        "num_attention_heads": heads,
        "num_key_value_heads": heads_kv,
        "head_dim": head_dim,
        "max_position_embeddings": draw.randint(24, 200),
        "tie_word_embeddings": chance(draw, 0.5),
    }
    if kind == "llama" and chance(draw, 0.3):
        config["hidden_size"] = heads * head_dim
        config["head_dim"] = None
        if chance(draw, 0.5):
            del config["head_dim"]
    if heads_kv == heads and chance(draw, 0.5):
        config["num_key_value_heads"] = None
        if kind == "llama":
            del config["num_key_value_heads"]
    if chance(draw, 0.8):
        config["rms_norm_eps"] = draw.choice([1e-6, 1e-5, 1.0, 10 ** draw.uniform(-8, 0)])
    if chance(draw, 0.6):
        config["hidden_act"] = draw.choice(["silu", "swish"])
    if chance(draw, 0.6):
        config["pad_token_id"] = draw.choice([None, -1, draw.randrange(-config["vocab_size"], config["vocab_size"])])
    return config


def draw_window(draw, config):
    """Only a Qwen3 has windows; a llama's file may speak of one all the same."""
    layers = config["num_hidden_layers"]
    if chance(draw, 0.5):
        config["sliding_window"] = draw.choice([None, draw.randint(1, 30)])
    if config["model_type"] == "llama":
        return
    if chance(draw, 0.6):
        config["use_sliding_window"] = chance(draw, 0.8)
    if chance(draw, 0.6):
        config["max_window_layers"] = draw.randint(-1, layers)
    window = config.get("use_sliding_window", False) and config.get("sliding_window", 4096) is not None
    if chance(draw, 0.4):
        kinds = ["full_attention", "sliding_attention", "attention"] if window else ["full_attention", "attention"]
        config["layer_types"] = [draw.choice(kinds) for _ in range(layers)]


def draw_rope(draw, config, kind):
    """All kinds, in all forms; theta is low because small heads have few frequencies."""
    rope = {}
    original = draw.randint(8, config["max_position_embeddings"])
    theta = draw.choice([100, 500.0, 10000, 1e6])
    if kind != "default":
        rope["factor"] = draw.choice([2, 4.0, draw.uniform(1, 9)])
    if kind == "llama3":
        rope["low_freq_factor"] = draw.choice([1, 1.5])
        rope["high_freq_factor"] = draw.choice([4.0, 6])
    if kind == "yarn":
        if chance(draw, 0.2):
            rope["factor"] = None
        for key, values in {"beta_fast": [None, 0, 8, 16.5], "beta_slow": [None, 0, 2, 0.5],
                            "truncate": [None, True, False], "attention_factor": [None, 1.25],
                            "mscale": [1.0, 0.7], "mscale_all_dim": [0, 0.5]}.items():
            if chance(draw, 0.4):
                rope[key] = draw.choice(values)
    outside = {}
    if kind in ("llama3", "yarn") and chance(draw, 0.8):
        # Both places, with the outer one to be preferred; or either.
        place = draw.randrange(3)
        if place != 1:
            rope["original_max_position_embeddings"] = original
        if place != 0:
            outside["original_max_position_embeddings"] = draw.randint(8, config["max_position_embeddings"])
    form = draw.choice(["rope_parameters", "rope_scaling", "both"])
    if kind != "default" or chance(draw, 0.5):
        rope[draw.choice(["rope_type", "type"]) if form != "rope_parameters" else "rope_type"] = kind
    if chance(draw, 0.9):
        (rope if form == "rope_parameters" or chance(draw, 0.2) else outside)["rope_theta"] = theta
    config.update(outside)
    if form == "both":  # the older one counts
        config["rope_parameters"] = {"rope_type": "linear", "factor": 3.0, "rope_theta": 77.0}
        form = "rope_scaling"
    if form == "rope_scaling" and not rope:
        rope = None
        config.pop("rope_parameters", None)
    config[form] = rope


def draw_extras(draw, config):
    for key, value in {"architectures": ["Anything"], "transformers_version": "4.51.0", "torch_dtype": "bfloat16",
                       "dtype": "float32", "use_cache": True, "bos_token_id": 1, "eos_token_id": [1, 2],
                       "auto_map": {"AutoModel": "code.Model"}, "temperature": 0.6, "not_a_key": [1, {"a": 2}],
                       "attention_bias": False, "attention_dropout": 0, "initializer_range": 0.02,
                       "partial_rotary_factor": None, "quantization_config": None, "layer_norm_eps": 1e-5}.items():
        if chance(draw, 0.3):
            config[key] = value


def draw_weights(draw, config, dtype, generator, folder):
    """Random weights of the model, in files as they are found."""
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**{**json.loads(json.dumps(config)), "tie_word_embeddings": False}))
    # Logits of a few units, whatever the width: with larger ones a few steps learn by heart, and nothing but rounding is left.
    fixed.randomise(model, {"spread": draw.uniform(0.5, 3) / math.sqrt(config["hidden_size"])}, generator)
    tensors = {name: value.to(WEIGHT_TYPES[dtype]) for name, value in model.state_dict().items()}
    embedding, output = "model.embed_tokens.weight", "lm_head.weight"
    ties = "no"
    if config["tie_word_embeddings"]:
        ties = draw.choice(["embedding", "output", "equal", "different"])
        if ties == "embedding":
            del tensors[output]
        elif ties == "output":
            del tensors[embedding]
        elif ties == "equal":
            tensors[output] = tensors[embedding].clone()
    shards = draw.choice([1, 1, 2, 3])
    names = sorted(tensors)
    draw.shuffle(names)
    if shards == 1:
        save_file({name: tensors[name].contiguous() for name in names}, folder / "model.safetensors", {"format": "pt"})
    else:
        files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
        for i, file in enumerate(files):
            save_file({name: tensors[name].contiguous() for name in names[i::shards]}, folder / file, {"format": "pt"})
        index = {name: files[i % shards] for i, name in enumerate(names)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return f"{dtype}, {shards} file{'s' * (shards > 1)}, tied: {ties}"


def draw_batches(draw, config):
    """Micro-batches of rows that are packed with documents: tokens, labels, positions [micro, batch, seq] and starts."""
    micro, batch, seq = draw.randint(1, 3), draw.randint(1, 2), draw.randint(16, 72)
    documents = draw.choice([0, draw.randint(1, 5)])
    vocab = config["vocab_size"]
    tokens = torch.tensor([[[draw.randrange(vocab) for _ in range(seq)] for _ in range(batch)] for _ in range(micro)])
    if config.get("pad_token_id") is not None:
        tokens[torch.tensor([chance(draw, 0.2) for _ in range(tokens.numel())]).reshape(tokens.shape)] = (
            config["pad_token_id"] % vocab)
    labels = torch.full_like(tokens, fixed.IGNORED)
    positions = torch.zeros_like(tokens)
    starts = torch.full((micro, batch, documents + 1), seq)
    for m in range(micro):
        share = draw.choice([0.05, 0.5, 1.0])  # micro-batches differ in their numbers of labels
        for b in range(batch):
            cuts = sorted(draw.sample(range(1, seq), draw.randint(0, max(documents - 1, 0))))
            for i, (begin, end) in enumerate(zip([0] + cuts, cuts + [seq])):
                if documents > 0:
                    starts[m, b, i] = begin
                positions[m, b, begin:end] = torch.arange(end - begin)
                for t in range(begin, end - 1):
                    if chance(draw, share):
                        labels[m, b, t] = tokens[m, b, t + 1]
        labels[m, 0, draw.randrange(seq)] = draw.randrange(vocab)  # at least one
    return {"tokens": tokens, "labels": labels, "positions": positions, "starts": starts}


def train(model, batches, clip):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    norms = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": norms, "weight_decay": 0.0}],
        lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, foreach=False)
    count = int((batches["labels"] != fixed.IGNORED).sum())
    losses, gradient_norms, first = [], [], {}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = 0.0
        for tokens, labels, positions in zip(batches["tokens"], batches["labels"], batches["positions"]):
            logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
            part = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=fixed.IGNORED,
                                   reduction="sum") / count
            part.backward()
            loss += part.item()
        if step == 0:
            first = {"grad." + name: p.grad.clone() for name, p in model.named_parameters()}
        losses.append(loss)
        gradient_norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), clip)))
        optimizer.step()
    return {
        **first, "loss": torch.tensor(losses), "grad_norm": torch.tensor(gradient_norms),
        **{"before." + name: value for name, value in before.items()},
        **{"after." + name: p.detach().clone() for name, p in model.named_parameters()},
    }


def write_model(seed, index, folder):
    draw = random.Random(f"{seed} {index}")
    generator = torch.Generator().manual_seed(draw.getrandbits(60))
    kind = draw.choice(["qwen3", "llama"])
    rope = ["default", "linear", "llama3", "yarn"][index % 4]
    dtype = list(WEIGHT_TYPES)[index % 3]
    config = draw_shape(draw, kind)
    draw_window(draw, config)
    draw_rope(draw, config, rope)
    draw_extras(draw, config)
    weights = draw_weights(draw, config, dtype, generator, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    batches = draw_batches(draw, config)
    clip = draw.choice([0.05, 1.0, math.inf])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=draw.choice(["eager", "sdpa"])).train()
    reference = train(model, batches, clip)
    reference.update({name: value.int() for name, value in batches.items()})
    reference["clip"] = torch.tensor([clip])
    save_file({key: value.contiguous() for key, value in reference.items()}, folder / "reference.safetensors")
    micro, batch, seq = batches["tokens"].shape
    return (f"{kind}, {rope} rope, {weights}, {micro} x {batch} x {seq} tokens, "
            f"up to {max(batches['starts'].shape[2] - 1, 1)} documents, clip {clip}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="gets the folder drawn")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=None, help="of an earlier run (default: a new one)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    seed = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    print(f"{options.count} drawn models, seed {seed}", flush=True)
    drawn = options.out / "drawn"
    shutil.rmtree(drawn, ignore_errors=True)
    for index in range(options.count):
        name = f"model_{index:02}"
        (drawn / name).mkdir(parents=True)
        print(f"{name}: {write_model(seed, index, drawn / name)}", flush=True)


if __name__ == "__main__":
    main()
