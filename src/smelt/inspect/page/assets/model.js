// The page's data: read, unpacked, and indexed so that each thing finds its like elsewhere.
"use strict";
window.smelt = { ...window.smeltVendor, Graph: window.smeltVendor.dagre.graphlib.Graph };
(() => {
  const STATE = new Set(["param", "buffer", "captured"]);

  async function load() {
    const element = document.getElementById("data");
    if (element.type === "application/json") return JSON.parse(element.textContent);
    const bytes = Uint8Array.from(atob(element.textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  // What is derived of one plan: who is who across stages, lines and steps.
  class Plan {
    constructor(code) {
      this.code = code;
      this.lines = new Map(); // "source:line" -> set of uids
      this.records = new Map(); // uid -> indexes of its records, in order
      code.nodes.forEach((record, index) => {
        push(this.records, record.uid, index);
        for (const [source, line] of record.at) add(this.lines, `${source}:${line}`, record.uid);
      });
      this.after = new Map();
      this.before = new Map();
      for (const stage of code.stages) {
        for (const [from, to] of Object.entries(stage.led)) {
          for (const uid of to) {
            add(this.after, Number(from), uid);
            add(this.before, uid, Number(from));
          }
        }
      }
      this.views = new Map();
      const last = this.at(code.stages.length - 1);
      this.last = last;
      this.stepsOf = new Map(); // uid of the last stage -> steps
      this.uidsOf = code.steps.map((step, index) => {
        const uids = [...new Set(step.nodes.map((name) => last?.byName.get(name)).filter((uid) => uid !== undefined))];
        for (const uid of uids) add(this.stepsOf, uid, index);
        return uids;
      });
      this.total = code.steps.reduce((sum, step) => sum + (step.us ?? 0), 0);
      this.groups = new Map(); // uid -> number of the launch that computes it
      code.steps.forEach((step, index) => {
        if (step.kernel >= 0) for (const uid of this.uidsOf[index]) this.groups.set(uid, index);
      });
    }

    // The nodes of a stage by name and uid.
    at(number) {
      if (number < 0) return null;
      if (!this.views.has(number)) {
        const records = this.code.stages[number].records.map((index) => this.code.nodes[index]);
        const byName = new Map();
        const byUid = new Map();
        for (const record of records) {
          byUid.set(record.uid, record);
          for (const name of record.names) byName.set(name, record.uid);
        }
        this.views.set(number, { records, byName, byUid, users: null });
      }
      return this.views.get(number);
    }

    users(number) {
      const view = this.at(number);
      if (!view.users) {
        view.users = new Map();
        for (const record of view.records) {
          for (const name of record.inputs) if (view.byName.has(name)) push(view.users, view.byName.get(name), record.uid);
        }
      }
      return view.users;
    }

    // The same computation at other stages: what became of nodes, and what they were before.
    related(uids) {
      const found = new Set(uids);
      for (const next of [this.after, this.before]) {
        const pending = [...uids];
        while (pending.length) {
          for (const other of next.get(pending.pop()) ?? []) {
            if (!found.has(other)) {
              found.add(other);
              pending.push(other);
            }
          }
        }
      }
      return found;
    }

    record(uid, stage) {
      return this.at(stage)?.byUid.get(uid) ?? this.code.nodes[this.records.get(uid)?.at(-1)];
    }

    steps(uids) {
      const found = new Set();
      for (const uid of uids) for (const step of this.stepsOf.get(uid) ?? []) found.add(step);
      return [...found].sort((a, b) => a - b);
    }

    places(uids) {
      const found = new Map();
      for (const uid of uids) {
        for (const index of this.records.get(uid) ?? []) {
          for (const [source, line] of this.code.nodes[index].at) found.set(`${source}:${line}`, [source, line]);
        }
      }
      return found;
    }

    // Microseconds of the steps that compute a node, shared among what they compute.
    time(uid) {
      let sum = 0;
      for (const step of this.stepsOf.get(uid) ?? []) sum += (this.code.steps[step].us ?? 0) / this.uidsOf[step].length;
      return sum;
    }

    group(uid) {
      if (this.groups.has(uid)) return this.groups.get(uid);
      for (const other of this.related([uid])) if (this.groups.has(other)) return this.groups.get(other);
      return -1;
    }

    get hasPhases() {
      return Object.keys(this.code.phases).length > 0;
    }

    phase(uid) {
      return this.code.phases[uid] ?? "";
    }

    how(uid) {
      for (const other of [uid, ...this.related([uid])]) {
        const name = this.last?.byUid.get(other)?.names[0];
        if (name !== undefined && this.code.ran[name]) return this.code.ran[name];
      }
      return null;
    }
  }

  function push(map, key, value) {
    if (map.has(key)) map.get(key).push(value);
    else map.set(key, [value]);
  }

  function add(map, key, value) {
    if (map.has(key)) map.get(key).add(value);
    else map.set(key, new Set([value]));
  }

  // An element; text is always text.
  function el(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes ?? {})) {
      if (value === undefined || value === null || value === false) continue;
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (key === "style") made.style.cssText = value;
      else made.setAttribute(key, value === true ? "" : value);
    }
    made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
    return made;
  }

  function svg(tag, attributes, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes ?? {})) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value);
    }
    made.append(...children.flat());
    return made;
  }

  function size(nbytes) {
    const units = ["B", "KB", "MB", "GB"];
    let at = 0;
    while (Math.abs(nbytes) >= 1024 && at < units.length - 1) {
      nbytes /= 1024;
      at += 1;
    }
    return `${at ? nbytes.toFixed(1) : nbytes} ${units[at]}`;
  }

  function time(us) {
    if (us >= 1000) return `${(us / 1000).toFixed(2)} ms`;
    return us >= 100 ? `${us.toFixed(0)} µs` : `${us.toFixed(2)} µs`;
  }

  function short(op) {
    return op.replace(/^(aten|prims|py)\./, "").replace(/\.(default|Tensor|Scalar|int)$/, "");
  }

  Object.assign(window.smelt, { load, Plan, el, svg, size, time, short, STATE });
})();
