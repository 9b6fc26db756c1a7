"""python3 finish.py WORKDIR DEST: packages WORKDIR/export as a Hugging Face folder and measures it (torch, tokenizers).

eval.json: 16 held-out prompts of each kind of text, the greedy continuation of up to 96 tokens (float32 on the stored
bf16 weights) and what a greedy decoder with draft depth 3 does on it, round by round.
"""
import json
import os
import random
import shutil
import sys

import numpy as np
import torch
from tokenizers import Tokenizer

import reference
from model import Config, TinyQwen

TEMPLATE = ("{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
            "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}")
ASSISTANT = "<|im_start|>assistant\n"
NEW_TOKENS, DEPTH, PROMPTS = 96, 3, 16


def package(work, dest, end, eot):
    os.makedirs(dest, exist_ok=True)
    for f in ("export/model.safetensors", "export/config.json", "tokenizer.json"):
        shutil.copy(f"{work}/{f}", dest)
    with open(f"{dest}/chat_template.jinja", "w") as f:
        f.write(TEMPLATE)
    settings = {"tokenizer_class": "Qwen2TokenizerFast", "bos_token": None, "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>", "unk_token": None, "add_bos_token": False,
                "clean_up_tokenization_spaces": False, "model_max_length": 8192}
    sampling = {"eos_token_id": [end, eot], "pad_token_id": eot, "do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 40}
    json.dump(settings, open(f"{dest}/tokenizer_config.json", "w"), indent=1)
    json.dump(sampling, open(f"{dest}/generation_config.json", "w"), indent=1)


def held_out_prompts(work, tokenizer):
    """The documents that make_tokens.py kept back: same seed, same order."""
    docs = json.load(open(f"{work}/docs.json"))
    random.seed(11)
    prompts = {}
    for kind, texts in docs.items():
        random.shuffle(texts)
        found = prompts.setdefault(kind, [])
        for text in texts[:max(8, len(texts) // 50)]:
            if ASSISTANT in text:
                ids = tokenizer.encode(text[:text.index(ASSISTANT) + len(ASSISTANT)], add_special_tokens=False).ids
            else:
                ids = tokenizer.encode(text, add_special_tokens=False).ids
                if len(ids) <= 80:
                    continue
                ids = ids[:48]
            if 8 <= len(ids) <= 64 and len(found) < PROMPTS:
                found.append(ids)
    return prompts


def continue_greedily(net, prompts):
    """All prompts in one batch, padded on the right, which a causal model can't see."""
    texts = [list(p) for p in prompts]
    for _ in range(NEW_TOKENS):
        longest = max(map(len, texts))
        batch = torch.tensor([t + [0] * (longest - len(t)) for t in texts])
        with torch.no_grad():
            hidden = net(batch)
            logits = net.head(hidden[torch.arange(len(texts)), torch.tensor([len(t) - 1 for t in texts])])
        for t, token in zip(texts, logits.argmax(-1).tolist()):
            t.append(token)
    return texts


def speculate(ref, ids, n_prompt, stop, proposed, accepted):
    """Counts by position into proposed and accepted; returns the accepted drafts of each round."""
    hidden = ref.trunk(ids)
    _, kv = ref.mtp(ids[1:] + [0], hidden, np.arange(len(ids)))
    at, trace = n_prompt, []
    while at < stop:  # ids[at] was emitted last; draft what follows
        drafts, n = ref.draft(hidden, ids[at], at - 1, kv, DEPTH)[:stop - at], 0
        for i, token in enumerate(drafts):
            proposed[i] += 1
            if token != ids[at + 1 + i]:
                break
            accepted[i] += 1
            n += 1
        trace.append(n)
        at += n + 1
    return trace


def main(work, dest):
    tokenizer = Tokenizer.from_file(f"{work}/tokenizer.json")
    eot, end = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")
    package(work, dest, end, eot)
    config, weights = reference.load(dest)
    ref = reference.Reference(config, weights)
    net = TinyQwen(Config(**{k: config[k] for k in Config.__dataclass_fields__ if k in config}))
    net.load_state_dict({k: torch.from_numpy(np.asarray(v, np.float32)) for k, v in weights.items()})
    net.eval()
    prompts, kinds = held_out_prompts(work, tokenizer), {}
    for kind in ("code", "json", "en", "zh"):
        proposed, accepted, cases, rounds, emitted = [0] * DEPTH, [0] * DEPTH, [], 0, 0
        for prompt, ids in zip(prompts[kind], continue_greedily(net, prompts[kind])):
            n = len(prompt)
            stop = next((i for i in range(n, len(ids)) if ids[i] in (end, eot)), len(ids) - 1)
            trace = speculate(ref, ids, n, stop, proposed, accepted)
            rounds += len(trace)
            emitted += stop - n
            cases.append({"prompt": prompt, "continuation": ids[n:stop + 1], "accepted_by_round": trace})
        kinds[kind] = {"acceptance": [round(a / max(1, p), 4) for a, p in zip(accepted, proposed)], "proposed": proposed,
                       "accepted": accepted, "tokens_per_round": round(emitted / max(1, rounds), 3), "cases": cases}
        print(kind, kinds[kind]["acceptance"], kinds[kind]["tokens_per_round"], flush=True)
    json.dump({"depth": DEPTH, "new_tokens": NEW_TOKENS, "kinds": kinds}, open(f"{dest}/eval.json", "w"))


if __name__ == "__main__":
    main(*sys.argv[1:3])
