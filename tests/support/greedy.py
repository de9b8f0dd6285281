"""Runs in the image: what transformers answers to each prompt, greedily, in float32. Prompts and lengths come as JSON.

Prints for each prompt its tokens, those of the answer, and by how many nats the least certain of these led.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    """Answer every prompt."""
    path, questions = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)  # two that wait for each other at every layer take minutes on a busy machine
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    print(json.dumps([answer(tokenizer, model, *question) for question in questions]))  # noqa: T201 - data on standard output


def answer(tokenizer, model, prompt, length):  # noqa: ANN001, ANN201 - torch's types are not here to be checked
    """Return the prompt's tokens, the answer's, and the smallest lead."""
    tokens = tokenizer(prompt, return_tensors="pt").input_ids
    generation = model.generate(
        tokens, max_new_tokens=length, do_sample=False, output_scores=True, return_dict_in_generate=True
    )
    best = [scores[0].log_softmax(-1).topk(2).values for scores in generation.scores]
    lead = min(float(first - second) for first, second in best)
    return {"prompt": tokens[0].tolist(), "answer": generation.sequences[0, tokens.shape[1] :].tolist(), "lead": lead}


if __name__ == "__main__":
    main()
