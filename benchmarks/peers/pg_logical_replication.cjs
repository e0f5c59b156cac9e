"use strict";
// npm's pg-logical-replication: `node pg_logical_replication.cjs NODE_MODULES FILE`. An object for each message, with the
// values that the package pg parses, dropped at once. Spoken to as worker.py says.
const fs = require("node:fs");
const path = require("node:path");
const readline = require("node:readline");

const [modules, file] = process.argv.slice(2);
const { PgoutputPlugin } = require(path.join(modules, "pg-logical-replication"));
const data = fs.readFileSync(file);
const messages = [];
for (let at = 0; at < data.length; ) {
  const end = at + 4 + data.readUInt32BE(at);
  messages.push(data.subarray(at + 4, end));
  at = end;
}
const CHANGES = new Set(["insert", "update", "delete"]);

function parser() {
  return new PgoutputPlugin({ protoVersion: 1, publicationNames: [] });
}

function round() {
  const plugin = parser();
  let rows = 0;
  const before = process.cpuUsage();
  const started = process.hrtime.bigint();
  for (const message of messages) {
    if (CHANGES.has(plugin.parse(message).tag)) rows++;
  }
  const wall = Number(process.hrtime.bigint() - started) / 1e9;
  const spent = process.cpuUsage(before);
  return { cpu: (spent.user + spent.system) / 1e6, wall, rows };
}

function common(value) {
  if (value === undefined) throw new Error("a value is missing");
  if (Buffer.isBuffer(value)) return value.toString("hex");
  if (value instanceof Date) return value.toISOString();
  return value;
}

function dump(directory) {
  const plugin = parser();
  const lines = [];
  for (const message of messages) {
    const change = plugin.parse(message);
    if (!CHANGES.has(change.tag)) continue;
    const { schema, name, columns } = change.relation;
    lines.push(JSON.stringify([`${schema}.${name}`, columns.map((column) => common(change.new[column.name]))]));
  }
  fs.writeFileSync(path.join(directory, "rows"), lines.join("\n") + "\n");
  return {};
}

console.log("{}");
readline.createInterface({ input: process.stdin }).on("line", (line) => {
  console.log(JSON.stringify(line.startsWith("dump ") ? dump(line.slice(5)) : round()));
});
