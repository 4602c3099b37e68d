"""The rules of deploy/prometheus as an object of the Prometheus operator: `python3 deploy/kubernetes/rules.py`."""

from pathlib import Path

DEPLOY = Path(__file__).parents[1]
MANIFEST = DEPLOY / "kubernetes/components/monitoring/rules.yaml"
GROUPS = "groups:\n"
HEAD = """# Written by deploy/kubernetes/rules.py from deploy/prometheus. Do not edit.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: noria
  labels:
    app.kubernetes.io/name: noria
spec:
  groups:
"""


def manifest() -> str:
    """The text of the object, with the comments of the rules."""
    texts = [(DEPLOY / "prometheus" / name).read_text() for name in ("objectives.yml", "alerts.yml")]
    lines = "".join(text.partition(GROUPS)[2] for text in texts).splitlines(keepends=True)
    return HEAD + "".join(f"  {line}" if line.strip() else line for line in lines)


if __name__ == "__main__":
    MANIFEST.write_text(manifest())
