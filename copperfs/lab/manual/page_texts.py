"""Page texts: what the Markdown and the man page of a command share."""

from copperfs.cli.parser_outline import Argument, Page


def usage(page: Page) -> str:
    required = [
        f"{each.flags[0]} {each.metavar}"
        for each in page.arguments
        if each.flags and not each.optional
    ]
    words = [_usage_of(each) for each in page.arguments if not each.flags]
    return " ".join(["copperfs", page.name, "[OPTIONS]", *required, *words])


def paragraphs(page: Page) -> tuple[str, str]:
    """The epilog's text and exit codes."""
    text, _, codes = page.epilog.partition("exit codes:")
    return text.strip(), codes.strip()


def _usage_of(argument: Argument) -> str:
    word = f"{argument.metavar}..." if argument.repeated else argument.metavar
    if argument.metavar == "COMMAND":
        return f"-- {word}"
    return f"[{word}]" if argument.optional else word
