"""Copies the page's JavaScript libraries, with their licences, from npm packages into `service/page/assets/vendor`.

`python scripts/vendor.py` after a change of PACKAGES. It needs npm, and checks each package against its integrity hash.
"""

import base64
import hashlib
import json
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

VENDOR = Path(__file__).parents[1] / "service/page/assets/vendor"


@dataclass(frozen=True, slots=True)
class Package:
    """One package: its exact version, the hash that the registry publishes, and the files to copy as {from: to}.

    `exports`: the variable of a script that is no module; it becomes the default export.
    `imports`: the package's imports, by name, and the files that they become: a browser knows no package names.
    """

    name: str
    version: str
    integrity: str
    files: dict[str, str]
    exports: str | None = None
    imports: dict[str, str] = field(default_factory=dict)


PACKAGES = (
    Package(
        "preact",
        "11.2.0",
        "sha512-/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
        {
            "dist/preact.mjs": "preact.js",
            "hooks/dist/hooks.mjs": "preact-hooks.js",
            "LICENSE": "preact.LICENSE.txt",
        },
        imports={"preact": "./preact.js"},
    ),
    Package(
        "htm",
        "3.1.1",
        "sha512-983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
        {"dist/htm.module.js": "htm.js", "LICENSE": "htm.LICENSE.txt"},
    ),
    Package(
        "marked",
        "18.2.1",
        "sha512-ii4bxCTCqqwpT86XZWgJNs+ZnAIZksmLGYMViWA7PDIXYIeNo1x6cDdX3JOip9NM/cI6p8z57FxliACboTruMA==",
        {"lib/marked.esm.js": "marked.js", "LICENSE": "marked.LICENSE.txt"},
    ),
    Package(
        "dompurify",
        "3.4.18",
        "sha512-ofe3wI/uNm68HInABYFJYqQxRw1EaKAjNdrFVKqjUY+UZurvNd2L/HuQe097s/4RivWiZyP6tT7aoT8atjfhwg==",
        {"dist/purify.es.mjs": "dompurify.js", "LICENSE": "dompurify.LICENSE.txt"},
    ),
    Package(
        "@highlightjs/cdn-assets",
        "11.12.0",
        "sha512-KvOKXODaiFmId9xaq3xc5xCL66wVLUuOngDbO9B/kewbFTqdGbn2nJxNhN3H5R1cgDTVj6R8vH0zgiNDEGjpDw==",
        {"es/highlight.min.js": "highlight.js", "LICENSE": "highlight.LICENSE.txt"},
    ),
    # KaTeX's parser with MathML alone: smaller than KaTeX (168 and 273 kB), without fonts. KaTeX's own MathML loses
    # bold, script and double-struck letters and the alignment of columns: browsers no longer read what it writes.
    Package(
        "temml",
        "0.13.5",
        "sha512-aPkDDgunanpLNL0ql32HbolqLep+w8DRcVXRql7rWrMt/PhczdLgL4UBYYVU3BYjCNjkGq4EqwIicu/zWr1iOg==",
        {"dist/temml.min.js": "temml.js", "LICENSE": "temml.LICENSE.txt"},
        exports="temml",
    ),
)


def copy(package: Package, directory: Path) -> None:
    """Write the package's files. Raises ValueError if the package is not the one that was chosen."""
    command = ["npm", "pack", "--silent", "--json", f"{package.name}@{package.version}"]
    done = subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True)
    archive = directory / json.loads(done.stdout)[0]["filename"]
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != package.integrity:
        raise ValueError(f"{package.name} {package.version} has the hash {found}, not {package.integrity}")
    with tarfile.open(archive) as packed:
        for source, target in package.files.items():
            content = packed.extractfile(f"package/{source}")
            assert content is not None
            lines = content.read().decode().splitlines()
            kept = [line for line in lines if not line.startswith("//# sourceMappingURL=")]
            if package.exports and target.endswith(".js"):
                kept.append(f"export default {package.exports};")
            text = "\n".join(kept) + "\n"
            for name, file in package.imports.items():
                text = text.replace(f'from"{name}"', f'from"{file}"')
            (VENDOR / target).write_text(text)


def main() -> None:
    VENDOR.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        for package in PACKAGES:
            copy(package, Path(directory))
            print(f"{package.name} {package.version}")


if __name__ == "__main__":
    main()
