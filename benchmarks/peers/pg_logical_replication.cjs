"use strict";
// Runs npm's pg-logical-replication over a file of messages: `node pg_logical_replication.cjs NODE_MODULES FILE`. It
// makes an object for each message and drops it at once. The npm package pg parses the values. worker.py describes the
// commands and the answers.
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

function newParser() {
  return new PgoutputPlugin({ protoVersion: 1, publicationNames: [] });
}

// Parses all messages once and returns the cost.
function round() {
  const parser = newParser();
  let rows = 0;
  const cpuBefore = process.cpuUsage();
  const started = process.hrtime.bigint();
  for (const message of messages) {
    if (CHANGES.has(parser.parse(message).tag)) rows++;
  }
  const wall = Number(process.hrtime.bigint() - started) / 1e9;
  const cpu = process.cpuUsage(cpuBefore);
  return { cpu: (cpu.user + cpu.system) / 1e6, wall, rows };
}

// A value in the form in which the suite compares the output of the peers.
function comparable(value) {
  if (value === undefined) throw new Error("a value is missing");
  if (Buffer.isBuffer(value)) return value.toString("hex");
  if (value instanceof Date) return value.toISOString();
  return value;
}

// Writes a line of JSON for each change: [table, [values]].
function dump(directory) {
  const parser = newParser();
  const lines = [];
  for (const message of messages) {
    const change = parser.parse(message);
    if (!CHANGES.has(change.tag)) continue;
    const { schema, name, columns } = change.relation;
    lines.push(JSON.stringify([`${schema}.${name}`, columns.map((column) => comparable(change.new[column.name]))]));
  }
  fs.writeFileSync(path.join(directory, "rows"), lines.join("\n") + "\n");
  return {};
}

console.log("{}");
readline.createInterface({ input: process.stdin }).on("line", (line) => {
  console.log(JSON.stringify(line.startsWith("dump ") ? dump(line.slice(5)) : round()));
});
