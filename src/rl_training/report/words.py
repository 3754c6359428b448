"""The words of pages and verdicts, each explained once: for the pages themselves and for the glossary."""

from __future__ import annotations

from rl_training.report.content import Section, Table

WORDS = {
    "action": "what a policy sets in each step: the position of a valve, a pump that is on or off, a torque",
    "behaviour": "whoever acted while the log was written, all operators and controllers together",
    "cost": (
        "a number per step that must not become too large on average, such as 1 where the tank is too hot; "
        "it is counted apart from the reward"
    ),
    "coverage": (
        "how much of what a policy does, and of the states it leads to, resembles rows of the log; where "
        "there are none, a value is a guess"
    ),
    "dial": (
        "a number from 0 (act as the log does) to 1 (do what the learned model of the plant believes to be "
        "best) that is chosen while the policy runs"
    ),
    "discount": (
        "how much a reward of the next step counts beside one of now; at 0.99 a reward counts half after 69 "
        "steps"
    ),
    "episode": (
        "one run from a start to an end: a batch, a shift, a drive; ends that the log does not mark must be "
        "stated"
    ),
    "guard": (
        "the part of an exported policy that notices when a row is unlike the training data, and then plays "
        "a fallback"
    ),
    "held out": "episodes that no training has seen, kept for judging",
    "interval": (
        "the range in which the true number lies nine times in ten, as far as the log can tell; 'cannot be "
        "told apart' means that intervals overlap"
    ),
    "limit": "how large the average of a cost may be; a policy keeps it, breaks it, or the log cannot tell",
    "novelty": "how far a row is from the training data; above 1 it lies further out than nearly all of them",
    "observation": "what a policy sees in each step, one number per column or formula",
    "offline, online": "learning from a log alone, and learning while acting in a plant or a simulator",
    "policy": "a function from an observation to an action, learned or not; the thing that is shipped",
    "resample": (
        "the log drawn anew from its own episodes, some twice and some not at all; how answers differ "
        "between resamples is what an interval is made of"
    ),
    "reward": "the number per step that says how good it was, in your units; the more the better",
    "seed": "the number that all random draws of a run start from; another seed shows how much was luck",
    "terminated, truncated": (
        "an episode that the task itself ended (a trip, a fall: nothing follows), and one that only the "
        "recording ended (a shift was over: what would have followed still counts)"
    ),
    "value": (
        "the expected sum of discounted rewards from the first state of an episode; per step it is divided "
        "by the sum of the discounts, which gives a number in the units of the reward"
    ),
    "verdict": (
        "the judge's answer about a policy: better than the log, worse, not distinguishable from it, or "
        "cannot be judged; each with the reasons"
    ),
}


def words_section(*names: str) -> Section:
    """The words that a page uses, for whoever reads it alone."""
    return Section("Words", (Table("", ("word", "meaning"), tuple((name, WORDS[name]) for name in names)),))
