"""JUnit XML for continuous integration: a suite per model, a test case per quantity of a node."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from ..characters import printable
from ..witnesses.checks import Verdict


def junit(verdicts: list[Verdict], skipped_models: dict[str, str]) -> str:
    """Returns the XML document of `llmcalc verify`."""
    root = ET.Element("testsuites", name="llmcalc verify")
    for verdict in verdicts:
        test_suite = ET.SubElement(
            root,
            "testsuite",
            name=verdict.target,
            tests=str(len(verdict.checks)),
            failures=str(len(verdict.failures)),
            time=f"{verdict.seconds:.3f}",
        )
        for check in verdict.checks:
            test_case = ET.SubElement(
                test_suite, "testcase", classname=f"{verdict.target}.{check.quantity}", name=check.where
            )
            if not check.ok:
                message = (
                    f"closed form {check.closed_form:,}, {check.witness} "
                    f"{check.measured if check.measured is None else format(check.measured, ',')}"
                )
                ET.SubElement(test_case, "failure", message=message).text = check.explanation(verdict.sizes)
    for name, reason in skipped_models.items():
        test_suite = ET.SubElement(root, "testsuite", name=name, tests="1", failures="0", skipped="1")
        ET.SubElement(ET.SubElement(test_suite, "testcase", classname=name, name="all"), "skipped", message=reason)
    return xml_text(root)


def xml_text(root: ET.Element) -> str:
    """Returns the document as indented text. Texts are made printable, because XML has no control characters."""
    for element in root.iter():
        element.attrib = {
            attribute_name: printable(attribute_text) for attribute_name, attribute_text in element.attrib.items()
        }
        element.text = element.text and printable(element.text)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
