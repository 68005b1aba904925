"""Prompts about countries: the name comes first, so that no block of one prompt equals a block of another."""

from __future__ import annotations

from collections.abc import Callable

Prompt = list[int]
NOTES = (
    "{country}. A page from a traveller's notebook about {country}. We came by train in the early morning, when the "
    "shops were still closed, and had coffee in a small place near the station. The people were friendly and told us "
    "what to see: the old town, the river, the market, the museums, and the hills behind the city, from where one can "
    "look far over the land. In the evening there was music in the streets. On the last day we wrote a short quiz for "
    "our friends at home. It was about {country}.\n"
    "Question: What is the capital of {country}?\nAnswer: The capital of {country} is"
)
COUNTRIES = ("France", "Japan", "Italy", "Egypt", "Spain", "Peru", "Kenya", "China", "Norway", "Cuba", "Greece", "Chile")


def country_prompts(tokenize: Callable[[str], Prompt]) -> list[Prompt]:
    """One prompt a country, those with as many tokens as the first one ahead of the others."""
    prompts = [tokenize(NOTES.format(country=country)) for country in COUNTRIES]
    return sorted(prompts, key=lambda prompt: len(prompt) != len(prompts[0]))


def numbered_prompt(number: int, length: int) -> Prompt:
    """A prompt of plain token ids, different from its first token on for every number."""
    return [100 + (number * 7919 + place * 104729) % 40000 for place in range(length)]
