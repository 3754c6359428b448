"""Reference returns for normalised scores, each tied to the environments it was measured in.

The values are those published with D4RL (Fu et al. 2020). They belong to D4RL's own environments and to the
Gym versions these were built on. Later versions of an environment of the same name earn other returns, so the
values are not offered for them: a score without its own reference would look comparable and not be.
"""

from __future__ import annotations

from rl_training.data.data_info import ReferenceReturns

Bounds = tuple[float, float]

LOCOMOTION: dict[str, Bounds] = {
    "HalfCheetah": (-280.178953, 12135.0),
    "Hopper": (-20.272305, 3234.3),
    "Walker2d": (1.629008, 4592.3),
    "Ant": (-325.6, 3879.7),
}
ADROIT: dict[str, Bounds] = {
    "pen": (96.262799, 3076.8331017826877),
    "hammer": (-274.856578, 12794.134825156867),
    "door": (-56.512833, 2880.5693087298737),
    "relocate": (-6.425911, 4233.877797728884),
}
MAZE2D: dict[str, Bounds] = {
    "maze2d-open-v0": (0.01, 20.66),
    "maze2d-umaze-v1": (23.85, 161.86),
    "maze2d-medium-v1": (13.13, 277.39),
    "maze2d-large-v1": (6.7, 273.99),
    "maze2d-open-dense-v0": (11.17817, 27.166538620695782),
    "maze2d-umaze-dense-v1": (68.537689, 193.66285642381482),
    "maze2d-medium-dense-v1": (44.264742, 297.4552547777125),
    "maze2d-large-dense-v1": (30.569041, 303.4857382709002),
}
ANTMAZES = ("umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse")
QUALITIES = ("random", "medium", "expert", "medium-replay", "medium-expert")


def _published() -> dict[str, Bounds]:
    """Environment id -> (minimum, maximum) for every environment that the published values belong to."""
    values = dict(MAZE2D)
    for name, bounds in LOCOMOTION.items():
        values[f"{name}-v2"] = bounds  # the Gym environment that D4RL's tasks wrap
        for version in (0, 1, 2):
            qualities = QUALITIES if version == 0 else (*QUALITIES, "full-replay")
            values |= {f"{name.lower()}-{quality}-v{version}": bounds for quality in qualities}
    for name, bounds in ADROIT.items():
        for source in ("human", "cloned", "expert"):
            values |= {f"{name}-{source}-v{version}": bounds for version in (0, 1)}
    values |= {f"antmaze-{maze}-v{version}": (0.0, 1.0) for maze in ANTMAZES for version in (0, 2)}
    values |= {f"kitchen-{part}-v0": (0.0, 4.0) for part in ("complete", "partial", "mixed")}
    return values


PUBLISHED = _published()


def published_reference(env_id: str | None) -> ReferenceReturns | None:
    """The published reference of exactly this environment, if there is one."""
    if env_id is None or env_id not in PUBLISHED:
        return None
    return ReferenceReturns(*PUBLISHED[env_id], f"D4RL {env_id}")


def reference_returns(
    env_id: str | None,
    *,
    configured: tuple[float | None, float | None] = (None, None),
    carried: ReferenceReturns | None = None,
    carried_env_id: str | None = None,
) -> ReferenceReturns | None:
    """The reference for scores in `env_id`: the user's, else the data's own, else the published one.

    References that the data carries were measured in the data's environment and count only there.
    """
    minimum, maximum = configured
    if minimum is not None and maximum is not None:
        return ReferenceReturns(minimum, maximum, "configuration")
    plain_id = None if env_id is None else env_id.rpartition(":")[2]  # without `package:` in front
    if carried is not None and carried_env_id in (None, plain_id):
        return carried
    return published_reference(plain_id)
