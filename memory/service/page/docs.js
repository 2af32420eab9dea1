// What /openapi.json says, readable.

import { byId, make, show } from "./elements.js";
import { startSettings } from "./settings.js";
import { onLanguage, t } from "./words.js";

let api = null;

const named = (schema) => (schema?.$ref ? api.components.schemas[schema.$ref.split("/").pop()] : schema);

function kind(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(kind).join(` ${t("orWord")} `);
  if (schema.type === "array") return t("listOf", kind(schema.items) || t("values"));
  return (schema.enum ?? [schema.const ?? schema.type ?? ""]).join(" | ");
}

function fields(schema) {
  const rows = Object.entries(schema?.properties ?? {}).map(([name, field]) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, make("code", {}, name)),
      make("td", {}, kind(field) + (schema.required?.includes(name) ? ` (${t("required")})` : "")),
      make("td", { lang: "en" }, field.description ?? ""),
    ),
  );
  return make("table", {}, make("tbody", {}, ...rows));
}

const json = (part) => part?.content?.["application/json"];

function section(path, method, call) {
  const box = make(
    "section",
    { className: "panel" },
    make("h2", {}, make("span", { className: "kind" }, method.toUpperCase()), " ", make("code", {}, path)),
    make("p", { lang: "en" }, call.summary ?? ""),
  );
  for (const { name, schema } of call.parameters ?? []) box.append(make("p", {}, make("code", {}, `?${name}`), ` ${kind(schema)}`));
  const body = json(call.requestBody);
  if (body) box.append(make("h3", {}, t("request")), fields(named(body.schema)));
  const answer = json(call.responses?.["200"]);
  if (answer && named(answer.schema)?.properties) box.append(make("h3", {}, t("answer")), fields(named(answer.schema)));
  return box;
}

function render() {
  const calls = Object.entries(api?.paths ?? {}).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, call]) => section(path, method, call)),
  );
  show(byId("api"), ...calls);
}

startSettings();
onLanguage(render);
try {
  api = await (await fetch("/openapi.json")).json();
  render();
} catch {
  show(byId("api"), make("p", { className: "notice bad" }, t("awaySentence")));
}
