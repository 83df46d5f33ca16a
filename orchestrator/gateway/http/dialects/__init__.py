"""The wires that agents speak: `chat` (OpenAI Chat Completions), `responses` (OpenAI Responses), `anthropic` (Messages), `native` (white boxes).

`base` is their interface, `fields` the table of every documented field of a request and its treatment.
"""
