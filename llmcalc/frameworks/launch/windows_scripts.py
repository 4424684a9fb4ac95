"""Translates batch files and PowerShell scripts of Windows to the shell that `shell.py` reads, line by line.

Continued lines, variables, comments and paths are translated. Conditions, loops and functions are not.
"""

from __future__ import annotations

import re

BATCH_ENDINGS = (".bat", ".cmd")
POWERSHELL_ENDING = ".ps1"

_BATCH_WITHOUT_PROGRAMS = re.compile(
    r"@?(rem\b|::|:\w|echo\b|pause\b|setlocal\b|endlocal\b|title\b|color\b|cls\b|chcp\b|timeout\b|cd\b|exit\b)",
    re.IGNORECASE,
)
"""Pattern of the beginning of a batch file's line that starts no program."""

_BATCH_SET = re.compile(r'set\s+"?([A-Za-z_]\w*)=([^"]*+)"?\s*+$', re.IGNORECASE)
_BATCH_START = re.compile(r'(call|start)\s+("[^"]*"\s+)?(/\w+\s+)*', re.IGNORECASE)
_POWERSHELL_SET = re.compile(r"\$(env:)?([A-Za-z_]\w*)\s*=\s*(.*)$", re.IGNORECASE)
_WINDOWS_PATH = re.compile(r"(?:^|[\s\"'=])(?:[A-Za-z]:|\.)\\\w")


def posix_paths(command_text: str) -> str:
    """Returns a typed command with slashes in the paths of Windows; a command without such paths unchanged."""
    return re.sub(r"\\(?=\S)", "/", command_text) if _WINDOWS_PATH.search(command_text) else command_text


def shell_text_of_windows_script(file_text: str, file_name: str) -> str:
    """Returns the text of a batch file or a PowerShell script as shell; any other file's text unchanged."""
    name_in_lower_case = file_name.lower()
    if name_in_lower_case.endswith(BATCH_ENDINGS):
        return "\n".join(map(_convert_batch_line, file_text.splitlines()))
    if name_in_lower_case.endswith(POWERSHELL_ENDING):
        return "\n".join(map(_convert_powershell_line, file_text.splitlines()))
    return file_text


def _convert_batch_line(script_line: str) -> str:
    script_line = script_line.strip().replace("\\", "/")
    if _BATCH_WITHOUT_PROGRAMS.match(script_line):
        return ""
    script_line = re.sub(r"%([A-Za-z_]\w*)%", r"${\1}", script_line.removeprefix("@").replace("%~dp0", "./"))
    set_match = _BATCH_SET.match(script_line)
    if set_match is not None:
        return f'export {set_match[1]}="{set_match[2]}"'
    script_line = _BATCH_START.sub("", script_line, count=1) if _BATCH_START.match(script_line) else script_line
    return f"{script_line[:-1]}\\" if script_line.endswith("^") else script_line


def _convert_powershell_line(script_line: str) -> str:
    script_line = script_line.strip().replace("\\", "/")
    set_match = _POWERSHELL_SET.match(script_line)
    if set_match is not None:
        return f"{'export ' if set_match[1] else ''}{set_match[2]}={set_match[3]}"
    script_line = re.sub(r"\$env:([A-Za-z_]\w*)", r"${\1}", script_line.removeprefix("&").lstrip(), flags=re.IGNORECASE)
    return f"{script_line[:-1]}\\" if script_line.endswith("`") else script_line
