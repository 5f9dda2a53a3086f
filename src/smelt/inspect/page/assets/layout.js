// From the nodes of a stage to boxes with places: modules and regions are boxes that hold others, laid out inner first.
"use strict";
(() => {
  const { STATE, short } = window.smelt;
  const MOST = 40; // boxes in one, beyond which neighbours are put together
  const FEW = 6; // boxes that show nothing yet
  const ROW = 26, PAD = 12, HEAD = 22;

  // The tree of a stage. A box: {key, kind, label, parent, children, uids, uid?, record?}; leaves have no children.
  function tree(plan, stage) {
    const view = plan.at(stage);
    const root = box("", "root", "", null);
    const leaves = new Map(); // uid -> box
    const named = new Map(); // value name -> box, for inputs and parameters of regions
    const arms = new Map(); // "uid/arm" -> box
    for (const [name, type] of plan.code.inputs) {
      const made = box(`in:${name}`, "input", `%${name}`, root);
      made.type = type;
      named.set(name, made);
    }
    for (const record of view.records) {
      if (STATE.has(record.op)) continue;
      let holder = root, base = "";
      if (record.parent >= 0) {
        holder = arms.get(`${record.parent}/${record.arm}`) ?? root;
        base = view.byUid.get(record.parent)?.scope ?? "";
      }
      holder = module(holder, record.scope, base);
      if (record.arms.length) {
        const frame = box(`frame:${record.uid}`, "frame", short(record.op), holder);
        frame.uid = record.uid;
        frame.record = record;
        leaves.set(record.uid, frame);
        record.arms.forEach((arm, number) => {
          const made = box(`arm:${record.uid}/${number}`, "arm", arm.what, frame);
          arms.set(`${record.uid}/${number}`, made);
          for (const name of arm.params) named.set(name, box(`param:${record.uid}/${number}/${name}`, "param", `%${name}`, made));
        });
      } else {
        const leaf = box(`node:${record.uid}`, "node", short(record.op), holder);
        leaf.uid = record.uid;
        leaf.record = record;
        leaves.set(record.uid, leaf);
      }
    }
    const outputs = box("out", "output", "return", root);
    const edges = edgesOf(plan, stage, view, leaves, named, arms, outputs);
    squeeze(root);
    chunk(root);
    count(root);
    return { root, leaves, edges };
  }

  function box(key, kind, label, parent) {
    const made = { key, kind, label, parent, children: [], uids: [], open: false };
    if (parent) parent.children.push(made);
    return made;
  }

  function module(holder, scope, base) {
    let rest = scope;
    if (base && (scope === base || scope.startsWith(`${base}.`))) rest = scope.slice(base.length + 1);
    let at = holder;
    for (const part of rest ? rest.split(".") : []) {
      at.modules ??= new Map();
      if (!at.modules.has(part)) at.modules.set(part, box(`${at.key}/${part}`, "module", part, at));
      at = at.modules.get(part);
    }
    return at;
  }

  function edgesOf(plan, stage, view, leaves, named, arms, outputs) {
    const edges = [];
    const source = (name) => named.get(name) ?? leaves.get(view.byName.get(name));
    for (const record of view.records) {
      const to = leaves.get(record.uid);
      for (const name of record.inputs) {
        const from = source(name);
        if (from && to) edges.push({ from, to, name });
      }
      record.arms.forEach((arm, number) => {
        const holder = arms.get(`${record.uid}/${number}`);
        if (!holder || !arm.yields.length) return;
        const end = box(`yield:${record.uid}/${number}`, "yield", "yield", holder);
        for (const name of arm.yields) if (source(name)) edges.push({ from: source(name), to: end, name });
        const first = arm.params.length ? named.get(arm.params.at(-1)) : null;
        if (first && record.op !== "if" && number === record.arms.length - 1) edges.push({ from: end, to: first, name: "", back: true });
      });
    }
    for (const name of plan.code.stages[stage].outputs) if (source(name)) edges.push({ from: source(name), to: outputs, name });
    return edges;
  }

  // A module that holds nothing but a module is one box with it; one that holds a node alone is that node.
  function squeeze(at) {
    for (let i = 0; i < at.children.length; i += 1) {
      let child = at.children[i];
      while (child.kind === "module" && child.children.length === 1 && child.children[0].kind === "module") {
        const only = child.children[0];
        only.label = `${child.label}.${only.label}`;
        only.parent = at;
        at.children[i] = only;
        child = only;
      }
      squeeze(child);
      if (child.kind === "module" && child.children.length === 1 && child.children[0].kind === "node") {
        const only = child.children[0];
        only.label = `${child.label}: ${only.label}`;
        only.parent = at;
        at.children[i] = only;
      }
    }
  }

  // Of many boxes in one, neighbours are put together until few are left.
  function chunk(at) {
    for (const child of at.children) chunk(child);
    if (at.kind === "frame") return;
    while (at.children.length > MOST * 1.5) {
      const kept = at.children;
      at.children = [];
      for (let i = 0; i < kept.length; i += MOST) {
        const part = kept.slice(i, i + MOST);
        const made = box(`${part[0].key}+${part.length}`, "chunk", "", at);
        made.children = part;
        for (const child of part) child.parent = made;
      }
    }
  }

  function count(at) {
    if (at.uid !== undefined) at.uids.push(at.uid);
    for (const child of at.children) {
      count(child);
      at.uids.push(...child.uids);
    }
    if (at.kind === "chunk") at.label = `${at.uids.length} nodes`;
  }

  // Opens boxes from outside in, as long as not too many are to be seen.
  function openSome(root, opened, most = 1.5 * MOST) {
    let seen = root.children.length;
    const pending = root.children.filter((child) => child.children.length);
    while (pending.length) {
      const next = pending.shift();
      const more = next.children.reduce((sum, child) => sum + (child.kind === "arm" ? child.children.length : 1), 0);
      if (seen + more > most && seen > FEW) continue;
      seen += more;
      opened.add(next.key);
      for (const child of next.children) {
        if (child.kind === "arm") opened.add(child.key);
        pending.push(...(child.kind === "arm" ? child.children : [child]).filter((inner) => inner.children.length));
      }
    }
  }

  // The box that stands for one in the picture: itself, or the outermost closed one around it.
  function shown(at) {
    let found = at;
    for (let up = at.parent; up; up = up.parent) if (!up.open) found = up;
    return found;
  }

  // Places for all boxes that are to be seen. Returns {boxes, edges, width, height}; boxes stand outer first.
  function layout(made, opened, measure) {
    const { root, edges } = made;
    mark(root, opened);
    root.open = true;
    const lifted = lift(edges);
    place(root, lifted, measure);
    const boxes = [];
    const lines = [];
    collect(root, 0, 0, boxes, lines);
    for (const edge of lifted.back) lines.push({ ...edge, points: null });
    return { boxes, lines, width: root.w, height: root.h };
  }

  function mark(at, opened) {
    at.open = at.children.length > 0 && opened.has(at.key);
    at.lines = [];
    for (const child of at.children) mark(child, opened);
  }

  // Edges between boxes that are seen, each at the box around both ends.
  function lift(edges) {
    const seen = new Map();
    const back = [];
    for (const edge of edges) {
      const from = shown(edge.from), to = shown(edge.to);
      if (from === to || isAround(from, to) || isAround(to, from)) continue;
      const key = `${from.key}>${to.key}`;
      const known = seen.get(key);
      if (known) known.names.push(edge.name);
      else if (edge.back) back.push({ from, to, names: [], back: true });
      else seen.set(key, { from, to, names: [edge.name] });
    }
    const at = new Map();
    for (const edge of seen.values()) {
      const ups = new Set();
      for (let up = edge.from; up; up = up.parent) ups.add(up);
      let inside = edge.to;
      while (inside.parent && !ups.has(inside.parent)) inside = inside.parent;
      const around = inside.parent;
      let outside = edge.from;
      while (outside.parent !== around) outside = outside.parent;
      const list = at.get(around) ?? at.set(around, []).get(around);
      list.push({ ...edge, a: outside, b: inside });
    }
    return { at, back };
  }

  function isAround(outer, inner) {
    for (let up = inner.parent; up; up = up.parent) if (up === outer) return true;
    return false;
  }

  function place(at, lifted, measure) {
    if (!at.open) {
      at.w = Math.max(44, measure(at.label) + 20);
      at.h = at.record?.view ? ROW - 8 : ROW;
      return;
    }
    for (const child of at.children) place(child, lifted, measure);
    const edges = lifted.at.get(at) ?? [];
    if (at.kind === "frame") side(at);
    else ranked(at, edges);
    at.w = Math.max(at.w, measure(at.label) + 40);
  }

  // Arms of a block stand beside each other.
  function side(at) {
    let x = PAD, h = 0;
    for (const child of at.children) {
      child.x = x;
      child.y = HEAD + 4;
      x += child.w + PAD;
      h = Math.max(h, child.h);
    }
    at.w = x;
    at.h = h + HEAD + PAD;
  }

  function ranked(at, edges) {
    const { Graph, dagre } = window.smelt;
    const graph = new Graph({ multigraph: false });
    graph.setGraph({ rankdir: "TB", nodesep: 14, ranksep: 26, marginx: PAD, marginy: PAD });
    graph.setDefaultEdgeLabel(() => ({}));
    const ids = new Map(at.children.map((child, index) => [child, String(index)]));
    for (const child of at.children) graph.setNode(ids.get(child), { width: child.w, height: child.h });
    for (const edge of edges) if (edge.a !== edge.b) graph.setEdge(ids.get(edge.a), ids.get(edge.b));
    dagre.layout(graph);
    const top = at.kind === "root" ? 0 : HEAD - 4;
    for (const child of at.children) {
      const placed = graph.node(ids.get(child));
      child.x = placed.x - child.w / 2;
      child.y = placed.y - child.h / 2 + top;
    }
    at.w = graph.graph().width || 60;
    at.h = (graph.graph().height || 30) + top;
    at.lines = edges.map((edge) => ({
      from: edge.from,
      to: edge.to,
      names: edge.names,
      points: (graph.edge(ids.get(edge.a), ids.get(edge.b))?.points ?? []).slice(1, -1).map((p) => [p.x, p.y + top]),
    }));
  }

  function collect(at, x, y, boxes, lines) {
    at.X = x;
    at.Y = y;
    if (at.kind !== "root") boxes.push(at);
    if (!at.open) return;
    for (const line of at.lines) lines.push({ ...line, points: line.points.map(([px, py]) => [px + x, py + y]) });
    for (const child of at.children) collect(child, x + child.x, y + child.y, boxes, lines);
  }

  Object.assign(window.smelt, { tree, layout, openSome, shownBox: shown });
})();
