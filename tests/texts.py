"""A small table of generated texts: half of a text depends on the label, the other half on the mailing list."""

import numpy as np
import pandas as pd

WORDS = {
    "spam": ["offer", "money", "free", "winner"],
    "ham": ["report", "meeting", "kernel", "lunch"],
    "yes": ["[list]", "wrote", "thread"],
    "no": ["dear", "you", "we"],
}
TINY = {
    "model_type": "bert",
    "vocab_size": 120,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 512,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
"""A network for 120 WordPieces."""


def make_texts(rows: int, seed: int = 0) -> pd.DataFrame:
    """Texts of 2 to 21 words with the columns ``spam`` (spam or ham) and ``list`` (yes or no), in equal numbers."""
    rng = np.random.default_rng(seed)
    spam, on_list = np.tile(["spam", "ham"], rows)[:rows], np.repeat(["yes", "no"], (rows + 1) // 2)[:rows]
    texts = [
        " ".join(rng.choice(WORDS[label] + WORDS[place], rng.integers(2, 22)))
        for label, place in zip(spam, on_list, strict=True)
    ]
    return pd.DataFrame({"text": texts, "spam": spam, "list": on_list})


def make_mails(rows: int) -> pd.DataFrame:
    """As :func:`make_texts`, with numbers in ``spam`` and the column ``mailing_list`` instead of ``list``."""
    mails = make_texts(rows).rename(columns={"list": "mailing_list"})
    return mails.assign(spam=(mails["spam"] == "spam").astype(int))
