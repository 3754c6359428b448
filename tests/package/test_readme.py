"""The two READMEs say the same commands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(?:text|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def command_blocks(name: str) -> list[list[str]]:
    """The commands of each block, without what is said about them after `#`."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return [
        [re.sub(r"\s+#.*", "", line) for line in block.splitlines() if line.strip()]
        for block in BLOCK.findall(text)
    ]


def test_every_command_of_the_chinese_readme_stands_in_the_english_one() -> None:
    english = [command for block in command_blocks("README.md") for command in block]
    chinese = [command for block in command_blocks("README.zh.md") for command in block]
    assert len(chinese) > 8
    assert [command for command in chinese if command not in english] == []


def test_the_blocks_of_both_stand_in_the_same_order_and_auto_comes_first() -> None:
    english, chinese = command_blocks("README.md"), command_blocks("README.zh.md")
    assert english[0] == chinese[0] and english[0][0].startswith("rl-training auto ")
    assert ["make demo", "make test"] in english
    tools = [block for block in english if block[0].startswith(("rl-training", "make"))]
    assert len(tools) == 4 and tools == chinese


@pytest.mark.parametrize("name", ["README.md", "README.zh.md", "docs/index.md", "docs/index.zh.md"])
def test_every_tutorial_is_linked_from_every_front_page(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    tutorials = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
    assert len(tutorials) == 5
    assert [page.name for page in tutorials if f"tutorials/{page.name})" not in text] == []
    assert "rl-training auto " in text and "rl-training serve auto/policy.onnx" in text


def test_make_demo_installs_what_the_demo_and_the_commands_on_own_data_need() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    core = makefile[makefile.index("$(CORE): pyproject.toml") :].partition("touch")[0]
    assert '".[parquet,export]"' in core  # tables, and policy.onnx
