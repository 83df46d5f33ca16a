"""A policy small enough to train on two cores, made from nothing: no download, no checkpoint.

    pieces.txt      the words and punctuation runs of the task suite, one per line (remade by `trainer.policy.vocabulary`)
    vocabulary.py   texts -> pieces.txt
    tokenizer.py    pieces.txt -> a `tokenizers.Tokenizer` in which a word is ONE id wherever it stands
    template.py     the chat format: token strings, the Jinja template, what a gateway has to do to follow it
    init.py         a random Qwen3 policy of about a million parameters, written as a Hugging Face directory

Nothing here imports torch: `python -m trainer.policy --out DIR --seed S` takes about a second.
"""
