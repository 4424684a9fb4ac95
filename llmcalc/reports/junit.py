"""JUnit XML for continuous integration: a suite per model, a test case per quantity of a node."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from ..characters import printable
from ..witnesses.checks import Verdict


def junit(model_verdicts: list[Verdict], skipped_models: dict[str, str]) -> str:
    """Returns the XML document of `llmcalc verify`."""
    xml_root = ET.Element("testsuites", name="llmcalc verify")
    for model_verdict in model_verdicts:
        test_suite = ET.SubElement(
            xml_root,
            "testsuite",
            name=model_verdict.target,
            tests=str(len(model_verdict.checks)),
            failures=str(len(model_verdict.failures)),
            time=f"{model_verdict.seconds:.3f}",
        )
        for check in model_verdict.checks:
            test_case = ET.SubElement(
                test_suite,
                "testcase",
                classname=f"{model_verdict.target}.{check.quantity}",
                name=check.location,
            )
            if not check.ok:
                failure_text = (
                    f"closed form {check.closed_form:,}, {check.witness} "
                    f"{'None' if check.measured_value is None else format(check.measured_value, ',')}"
                )
                ET.SubElement(test_case, "failure", message=failure_text).text = check.explanation(model_verdict.sizes)
    for model_name, skip_reason in skipped_models.items():
        test_suite = ET.SubElement(xml_root, "testsuite", name=model_name, tests="1", failures="0", skipped="1")
        ET.SubElement(
            ET.SubElement(test_suite, "testcase", classname=model_name, name="all"), "skipped", message=skip_reason
        )
    return xml_text(xml_root)


def xml_text(xml_root: ET.Element) -> str:
    """Returns the document as indented text. Texts are made printable, because XML has no control characters."""
    for xml_element in xml_root.iter():
        xml_element.attrib = {
            attribute_name: printable(attribute_text) for attribute_name, attribute_text in xml_element.attrib.items()
        }
        xml_element.text = xml_element.text and printable(xml_element.text)
    ET.indent(xml_root)
    return ET.tostring(xml_root, encoding="unicode", xml_declaration=True) + "\n"
