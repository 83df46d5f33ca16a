"""Poison: messages and agents that are wrong in every way that outsiders can be, mixed into a chaos run.

messages   the messages, each with how it must end: pure, but for the real ones that are forged
agents     tasks whose agents leave poison behind; the program is harness/poison.py
mixing     publishes both, and waits until each has ended by name
"""
