"""Questions as people type them: other words, case, punctuation, a slip of the finger. Pure.

`dataset.py` varies the questions of the corpus with it, `evaluate.py` makes questions that were never
trained on. All chance comes from the generator that is handed in.
"""

from __future__ import annotations

import random
import re

_OPENERS = (
    "Please",
    "Hi,",
    "Hello,",
    "Hey,",
    "So,",
    "OK,",
    "And",
    "Well,",
    "Now",
    "Quick question:",
    "I wonder,",
    "One more question:",
    "Tell me,",
    "I have a question:",
    "Can you tell me:",
    "Could you say:",
    "Question:",
    "Do you know,",
    "Hi there!",
    "Good morning!",
)
_SYNONYMS = {
    "how do i": "how can i|how could i|how do you|how should i|how would i|how does one|how to|how must i",
    "how can i": "how do i|how could i|how would one|how to|what can i do to",
    "what is": "what's|what exactly is|so what is|what on earth is|whats|what would be",
    "what are": "what exactly are|whatre|so what are",
    "what does": "what exactly does|what will",
    "why is": "why's|how come|for what reason is",
    "why do": "how come|for what reason do",
    "explain": "describe|please explain|clarify",
    "show": "display|print",
    "see": "view|look at|find|check",
    "get": "obtain|find|retrieve",
    "delete": "remove|destroy|drop|erase",
    "create": "make|set up|add|build",
    "change": "modify|edit|alter",
    "use": "work with|employ",
    "start": "launch|begin",
    "large": "big|huge",
    "big": "large",
    "slow": "so slow|sluggish",
    "need": "require|want",
    "my": "the|a|our",
    "which": "what",
    "mean": "stand for|signify",
    "useful": "good|helpful",
    "happens": "will happen",
}
_STOP_WORDS = frozenset(
    [
        "a",
        "an",
        "the",
        "my",
        "do",
        "does",
        "is",
        "are",
        "i",
        "to",
        "of",
        "in",
        "for",
        "it",
        "there",
        "me",
        "you",
        "can",
    ]
)
_CLOSERS = ("please", "thanks", "in short", "for me", "briefly")


def capitalised(text: str) -> str:
    """Return the text with a capital first letter; the rest stays as it is."""
    return text[:1].upper() + text[1:]


def vary(question: str, rng: random.Random) -> str:
    """Ask the same thing as people type it: other words, case, punctuation, a slip of the finger."""
    text = _reword(question, rng) if rng.random() < 0.4 else question
    if rng.random() < 0.1:
        opener = rng.choice(_OPENERS)
        text = f"{opener} {text if text[:2].isupper() or text[:2] == 'I ' else text[:1].lower() + text[1:]}"
    if rng.random() < 0.06 and text[-1:] in "?.":
        text = f"{text[:-1]}, {rng.choice(_CLOSERS)}{text[-1]}"
    if rng.random() < 0.12 and len(text.split()) > 3:
        text = _thin_out(text, rng)
    text = _end(_recase(text, rng), rng)
    return _slip(text, rng) if rng.random() < 0.06 else text


def _reword(text: str, rng: random.Random) -> str:
    """Replace one expression by another of like meaning, where there is one."""
    found = [phrase for phrase in _SYNONYMS if re.search(rf"\b{phrase}\b", text, re.IGNORECASE)]
    if not found:
        return text
    phrase = rng.choice(found)
    other = rng.choice(_SYNONYMS[phrase].split("|"))
    changed = re.sub(rf"\b{phrase}\b", other, text, count=1, flags=re.IGNORECASE)
    return capitalised(changed) if text[:1].isupper() else changed


def _thin_out(text: str, rng: random.Random) -> str:
    """Leave out small words, as in a search box, and now and then another one."""
    words = text.split()
    kept = [w for w in words if rng.random() > (0.6 if w.lower() in _STOP_WORDS else 0.05)]
    return " ".join(kept) if len(kept) > 1 else text


def _recase(text: str, rng: random.Random) -> str:
    case = rng.random()
    if case < 0.25:
        return text.lower()
    return text.upper() if case < 0.27 else text


def _end(text: str, rng: random.Random) -> str:
    ending = rng.random()
    if ending < 0.25:
        return text.rstrip("?.!") or text
    if ending < 0.29:
        return text.rstrip("?.!") + rng.choice(("??", "!", "...", " ?"))
    return text


def _slip(text: str, rng: random.Random) -> str:
    """Drop, double or swap one letter."""
    if len(text) < 8:
        return text
    index = rng.randrange(2, len(text) - 2)
    kind = rng.randrange(3)
    if kind == 0:
        return text[:index] + text[index + 1 :]
    if kind == 1:
        return text[:index] + text[index] + text[index:]
    return text[:index] + text[index + 1] + text[index] + text[index + 2 :]
