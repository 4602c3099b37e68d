// One operation: what it takes, what it answers, and a form that tries it.

import { element } from "../dom.js";
import { fields, lazy, nested, prose, resolve, words } from "./schema.js";
import { Trial } from "./trial.js";

const JSON_TYPE = "application/json";

export class Operation {
  constructor(server, document, method, path, operation) {
    Object.assign(this, { server, document, method, path, operation });
    this.id = `${method}-${path.replaceAll(/\W+/g, "-").replace(/^-/, "")}`;
    this.body = operation.requestBody?.content[JSON_TYPE] ?? null;
    this.text = this.#words().toLowerCase();
    this.box = this.#build();
  }

  open() {
    this.box.open = true;
    this.box.scrollIntoView();
    this.box.querySelector("summary").focus();
  }

  /** What the search reads. */
  #words() {
    const schema = this.body ? resolve(this.document, this.body.schema).schema : {};
    const { summary, description = "" } = this.operation;
    return [this.method, this.path, summary, description, ...Object.keys(schema.properties ?? {})].join(" ");
  }

  #build() {
    const box = lazy("", () => this.#content());
    box.id = this.id;
    box.className = "operation";
    box
      .querySelector("summary")
      .replaceChildren(
        element("span", { class: `method ${this.method}` }, this.method.toUpperCase()),
        " ",
        element("h3", {}, this.path),
        " ",
        element("span", { class: "faint" }, this.operation.summary),
      );
    return box;
  }

  #content() {
    const { description } = this.operation;
    return [
      description ? element("p", {}, prose(description)) : null,
      element("h4", {}, "Try it"),
      new Trial(this).box,
      ...(this.body ? [element("h4", {}, "Body"), ...this.#bodyFields()] : []),
      element("h4", {}, "Answers"),
      element(
        "dl",
        { class: "fields" },
        Object.entries(this.operation.responses).map((answer) => this.#answer(...answer)),
      ),
    ];
  }

  #bodyFields() {
    const { schema } = resolve(this.document, this.body.schema);
    return (
      fields(this.document, schema)?.filter(Boolean) ?? [
        element("p", {}, words(schema)),
        ...nested(this.document, schema),
      ]
    );
  }

  #answer(status, { description, content = {}, headers = {} }) {
    const kinds = Object.entries(content).map(([type, { schema }]) =>
      lazy(`${type}: ${words(schema)}`, () => {
        const found = resolve(this.document, schema).schema;
        return fields(this.document, found) ?? element("p", {}, prose(found.description ?? words(found)));
      }),
    );
    const names = Object.entries(headers).map(([name, header]) =>
      element("li", {}, element("code", {}, name), `: ${header.description ?? ""}`),
    );
    return element(
      "div",
      {},
      element("dt", {}, element("code", {}, status), " ", prose(description)),
      element("dd", {}, kinds, names.length ? lazy("Headers", () => element("ul", {}, names)) : null),
    );
  }
}
