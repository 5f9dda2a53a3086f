// The graph on a canvas: drawn where it is seen, moved with pointer and keys.
"use strict";
(() => {
  const smelt = window.smelt;
  const PALETTE = 12;
  const MANY = 400; // boxes, above which those too small for words are drawn together
  const READABLE = 5; // pixels of a letter
  const MARGIN = 0.5; // of the smaller side: how much is painted around what is seen
  const SHARP_MS = 150; // after the last change of scale, what was stretched is painted again
  const BAND = 2000; // of the graph's own units: how high a band of lines is

  class GraphPane {
    constructor(app) {
      this.app = app;
      this.canvas = document.getElementById("canvas");
      this.context = this.canvas.getContext("2d");
      this.tip = document.getElementById("tip");
      this.opened = new Map(); // plan and stage -> keys of open boxes
      this.transform = smelt.zoomIdentity;
      this.frames = 0;
      this.zoom = smelt.zoom().scaleExtent([0.02, 6]).on("zoom", (event) => {
        this.transform = event.transform;
        this.redraw(true);
      });
      this.selection = smelt.select(this.canvas).call(this.zoom).on("dblclick.zoom", null);
      this.canvas.addEventListener("click", (event) => this.onClick(event));
      this.canvas.addEventListener("dblclick", (event) => this.onDouble(event));
      this.canvas.addEventListener("pointermove", (event) => this.onMove(event));
      this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
      this.canvas.addEventListener("keydown", (event) => this.onKey(event));
      new ResizeObserver(() => this.resize()).observe(this.canvas.parentElement);
      this.resize();
    }

    resize() {
      const frame = this.canvas.parentElement.getBoundingClientRect();
      const ratio = window.devicePixelRatio || 1;
      this.width = Math.max(50, frame.width);
      this.height = Math.max(50, frame.height);
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
      this.ratio = ratio;
      if (this.made && !this.isMoved) this.fit();
      this.redraw();
    }

    show(plan, stage) {
      const before = this.plan;
      this.plan = plan;
      this.stage = stage;
      this.tree = smelt.tree(plan, stage);
      if (!this.opened.has(plan)) {
        const opened = new Set();
        smelt.openSome(this.tree.root, opened);
        this.opened.set(plan, opened);
      }
      this.place();
      if (before !== plan) this.fit();
    }

    get open() {
      return this.opened.get(this.plan);
    }

    place() {
      this.context.font = this.font();
      this.made = smelt.layout(this.tree, this.open, (text) => this.context.measureText(text).width);
      const edges = new Map();
      for (const line of this.made.lines) {
        if (line.back) continue;
        (edges.get(line.from) ?? edges.set(line.from, { out: [], in: [] }).get(line.from)).out.push(line.to);
        (edges.get(line.to) ?? edges.set(line.to, { out: [], in: [] }).get(line.to)).in.push(line.from);
      }
      this.edges = edges;
      this.lines = null;
      this.painted = null;
      this.redraw();
    }

    font() {
      return "12px system-ui, sans-serif";
    }

    fit() {
      if (!this.made) return;
      const k = Math.min(1.4, 0.96 * Math.min(this.width / this.made.width, this.height / this.made.height));
      const readable = Math.max(k, Math.min(0.55, (0.96 * this.width) / this.made.width));
      const y = readable > k ? 8 : (this.height - this.made.height * readable) / 2;
      const at = smelt.zoomIdentity.translate((this.width - this.made.width * readable) / 2, y).scale(readable);
      this.selection.call(this.zoom.transform, at);
      this.isMoved = false;
    }

    fitWhole() {
      const k = Math.min(1.4, 0.96 * Math.min(this.width / this.made.width, this.height / this.made.height));
      const at = smelt.zoomIdentity
        .translate((this.width - this.made.width * k) / 2, (this.height - this.made.height * k) / 2).scale(k);
      this.selection.call(this.zoom.transform, at);
      this.isMoved = false;
    }

    foldAll(isOpen) {
      this.open.clear();
      if (isOpen) {
        const visit = (box) => {
          if (box.children.length) this.open.add(box.key);
          box.children.forEach(visit);
        };
        visit(this.tree.root);
      }
      this.place();
      this.fit();
    }

    toggle(box) {
      if (!box.children.length) return;
      if (this.open.has(box.key)) this.open.delete(box.key);
      else {
        this.open.add(box.key);
        for (const child of box.children) if (child.kind === "arm") this.open.add(child.key);
      }
      this.place();
      this.app.say(`${box.label} is ${this.open.has(box.key) ? "open" : "closed"}`);
    }

    // Makes a node visible: opens what is around it, and moves there.
    reveal(uids) {
      const leaf = [...uids].map((uid) => this.tree.leaves.get(uid)).find(Boolean);
      if (!leaf) return;
      let isNew = false;
      for (let up = leaf.parent; up; up = up.parent) {
        if (up.key && !this.open.has(up.key)) {
          this.open.add(up.key);
          isNew = true;
        }
      }
      if (isNew) this.place();
      const t = this.transform;
      const x = t.applyX(leaf.X + leaf.w / 2), y = t.applyY(leaf.Y + leaf.h / 2);
      if (x < 20 || y < 20 || x > this.width - 20 || y > this.height - 20 || t.k < 0.4) {
        const k = Math.max(t.k, 0.8);
        this.selection.call(this.zoom.transform, smelt.zoomIdentity
          .translate(this.width / 2 - (leaf.X + leaf.w / 2) * k, this.height / 2 - (leaf.Y + leaf.h / 2) * k).scale(k));
      }
    }

    // --- drawing

    // isMoved: nothing has changed but where the graph is seen from, so what was painted still holds.
    redraw(isMoved = false) {
      if (!isMoved) this.picture = null;
      if (this.pending) return;
      this.pending = requestAnimationFrame(() => {
        this.pending = 0;
        this.draw();
      });
    }

    draw() {
      if (!this.made) return;
      this.frames += 1;
      const c = this.context, t = this.transform;
      c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      c.clearRect(0, 0, this.width, this.height);
      if (this.made.boxes.length <= MANY) {
        this.paint(c, t, this.width, this.height);
        return;
      }
      if (!this.picture || !this.covers(this.picture, t)) this.repaint();
      const { canvas, t: then, margin } = this.picture;
      const k = t.k / then.k;
      c.drawImage(canvas, t.x - (then.x + margin) * k, t.y - (then.y + margin) * k,
        (canvas.width / this.ratio) * k, (canvas.height / this.ratio) * k);
      if (k === 1) return;
      clearTimeout(this.sharpen);
      this.sharpen = setTimeout(() => this.redraw(), SHARP_MS);
    }

    // Whether a picture shows all that is seen now, and is not too coarse or too fine for it.
    covers({ t, margin }, now) {
      const k = now.k / t.k;
      const left = (t.x + margin) * k - now.x, top = (t.y + margin) * k - now.y;
      return k > 0.66 && k < 1.5 && left >= 0 && top >= 0
        && left + this.width <= (this.width + 2 * margin) * k && top + this.height <= (this.height + 2 * margin) * k;
    }

    // The graph and what is around the part that is seen, on a canvas of its own: moving it is moving a picture.
    repaint() {
      const margin = Math.round(Math.min(this.width, this.height) * MARGIN);
      const canvas = document.createElement("canvas");
      canvas.width = Math.round((this.width + 2 * margin) * this.ratio);
      canvas.height = Math.round((this.height + 2 * margin) * this.ratio);
      const c = canvas.getContext("2d");
      c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      const t = this.transform;
      const moved = smelt.zoomIdentity.translate(t.x + margin, t.y + margin).scale(t.k);
      this.paint(c, moved, this.width + 2 * margin, this.height + 2 * margin);
      this.picture = { canvas, t, margin };
    }

    paint(c, t, width, height) {
      const style = this.app.colours();
      c.translate(t.x, t.y);
      c.scale(t.k, t.k);
      const seen = { left: t.invertX(0), right: t.invertX(width), top: t.invertY(0), bottom: t.invertY(height) };
      const isSeen = (box) => box.X < seen.right && box.X + box.w > seen.left && box.Y < seen.bottom && box.Y + box.h > seen.top;
      const selected = this.app.state.uids;
      if (this.made.boxes.length > MANY && t.k * 12 < READABLE) {
        this.drawFar(c, style, seen, isSeen, selected);
        return;
      }
      for (const box of this.made.boxes) if (box.open && isSeen(box)) this.drawBox(c, box, style, selected);
      this.drawLines(c, style, seen, selected);
      for (const box of this.made.boxes) if (!box.open && isSeen(box)) this.drawBox(c, box, style, selected);
    }

    // Many boxes, too small for words: one path for all lines, and one for all boxes of a colour.
    drawFar(c, style, seen, isSeen, selected) {
      const { k } = this.transform;
      c.lineWidth = 1;
      c.strokeStyle = style.line;
      for (const box of this.made.boxes) {
        if (!box.open || !isSeen(box)) continue;
        c.fillStyle = style.hull;
        c.fillRect(box.X, box.Y, box.w, box.h);
        c.strokeRect(box.X, box.Y, box.w, box.h);
      }
      c.lineWidth = Math.max(0.6, 0.5 / k);
      for (const band of this.bands()) if (band.low < seen.bottom && band.high > seen.top) c.stroke(band.path);
      for (const [colour, boxes] of this.byColour(style)) {
        c.fillStyle = colour;
        c.beginPath();
        for (const box of boxes) if (isSeen(box)) c.rect(box.X, box.Y, box.w, box.h);
        c.fill();
      }
      if (!selected.size) return;
      c.strokeStyle = style.accent;
      c.lineWidth = Math.max(2.5, 1.5 / k);
      c.beginPath();
      for (const box of this.made.boxes) {
        if (isSeen(box) && (box.open ? box.uid !== undefined && selected.has(box.uid) : isIn(box, selected))) c.rect(box.X, box.Y, box.w, box.h);
      }
      c.stroke();
    }

    // The lines as straight ones, in bands from top to bottom, so that those that are not seen cost nothing.
    bands() {
      if (this.lines) return this.lines;
      const bands = new Map();
      for (const { from, to, points } of this.made.lines) {
        const number = Math.floor(from.Y / BAND);
        const band = bands.get(number) ?? bands.set(number, { path: new Path2D(), low: Infinity, high: -Infinity }).get(number);
        band.path.moveTo(from.X + from.w / 2, from.Y + from.h / 2);
        for (const [x, y] of points ?? []) band.path.lineTo(x, y);
        band.path.lineTo(to.X + to.w / 2, to.Y + to.h / 2);
        band.low = Math.min(band.low, from.Y, to.Y);
        band.high = Math.max(band.high, from.Y + from.h, to.Y + to.h);
      }
      this.lines = [...bands.values()];
      return this.lines;
    }

    // The closed boxes by their colour, found anew only when what colours them has changed.
    byColour(style) {
      const by = `${this.app.state.colour}/${this.stage}/${style.dark}`;
      if (this.painted?.by === by) return this.painted.boxes;
      const boxes = new Map();
      for (const box of this.made.boxes) {
        if (box.open) continue;
        const colour = this.fill(box, style);
        (boxes.get(colour) ?? boxes.set(colour, []).get(colour)).push(box);
      }
      this.painted = { by, boxes };
      return boxes;
    }

    drawLines(c, style, seen, selected) {
      const far = this.transform.k < 0.12;
      c.lineWidth = 1.2;
      for (const isLit of [false, true]) {
        c.strokeStyle = isLit ? style.accent : style.line;
        c.lineWidth = isLit ? 2 : 1.2;
        c.beginPath();
        for (const line of this.made.lines) {
          const { from, to } = line;
          const low = Math.min(from.Y, to.Y), high = Math.max(from.Y + from.h, to.Y + to.h);
          if (low > seen.bottom || high < seen.top || (far && !isLit && line.points?.length)) continue;
          const lit = selected.size > 0 && (isIn(from, selected) || isIn(to, selected)) && !from.open && !to.open;
          if (lit !== isLit) continue;
          if (line.back) this.backLine(c, from, to);
          else forwardLine(c, from, to, line.points);
        }
        c.stroke();
      }
    }

    backLine(c, from, to) {
      const x = Math.max(from.X + from.w, to.X + to.w) + 14;
      c.moveTo(from.X + from.w, from.Y + from.h / 2);
      c.bezierCurveTo(x, from.Y + from.h / 2, x, to.Y + to.h / 2, to.X + to.w, to.Y + to.h / 2);
    }

    drawBox(c, box, style, selected) {
      const isLit = selected.size > 0 && (box.open ? box.uid !== undefined && selected.has(box.uid) : isIn(box, selected));
      const k = this.transform.k;
      c.fillStyle = box.open ? style.hull : this.fill(box, style);
      c.strokeStyle = isLit ? style.accent : box.open ? style.line : style.edge;
      c.lineWidth = isLit ? Math.max(2.5, 1.5 / k) : 1;
      c.setLineDash(box.kind === "arm" ? [4, 3] : []);
      c.beginPath();
      if (k < 0.2) c.rect(box.X, box.Y, box.w, box.h);
      else c.roundRect(box.X, box.Y, box.w, box.h, ["input", "output", "param", "yield"].includes(box.kind) ? 12 : 5);
      c.fill();
      c.stroke();
      c.setLineDash([]);
      if (!box.open && box.children.length) {
        c.beginPath();
        c.rect(box.X + 3, box.Y + box.h, box.w - 6, 2.5);
        c.fill();
        c.stroke();
      }
      if (k * 12 < READABLE) return;
      c.fillStyle = box.open ? style.dim : style.ink;
      c.font = this.font();
      c.textBaseline = "middle";
      const y = box.open ? box.Y + 12 : box.Y + box.h / 2 + 0.5;
      c.textAlign = box.open ? "left" : "center";
      c.fillText(box.label, box.open ? box.X + 8 : box.X + box.w / 2, y);
    }

    fill(box, style) {
      if (["input", "output", "param", "yield"].includes(box.kind)) return style.pill;
      const uids = box.uids;
      if (!uids.length) return style.box;
      const by = this.app.state.colour;
      const { plan } = this;
      if (by === "group") {
        const group = box.children.length ? -1 : plan.group(uids[0]);
        return group < 0 ? style.box : style.palette[group % PALETTE];
      }
      if (by === "phase") {
        const phases = new Set(uids.map((uid) => plan.phase(uid)));
        return phases.size === 1 ? style.phase[[...phases][0]] ?? style.box : style.box;
      }
      if (by === "how") return box.children.length ? style.box : style.how[plan.how(uids[0])?.how] ?? style.box;
      if (by === "dtype") {
        const type = box.record?.types[0]?.match(/^[a-z]+[0-9]*/)?.[0] ?? "";
        return type ? style.palette[hash(type) % PALETTE] : style.box;
      }
      return style.heat(this.share(by, uids));
    }

    // The share of a box in the whole, 0 to 1, spread so that small ones differ.
    share(by, uids) {
      const key = `${by}/${this.stage}`;
      this.totals ??= new Map();
      const of = (uid) => {
        const record = this.plan.record(uid, this.stage);
        return by === "time" ? this.plan.time(uid) : by === "bytes" ? record.nbytes : record.flops;
      };
      const totals = this.totals.get(this.plan) ?? this.totals.set(this.plan, new Map()).get(this.plan);
      if (!totals.has(key)) totals.set(key, this.tree.root.uids.reduce((sum, uid) => sum + of(uid), 0));
      const total = totals.get(key);
      return total ? Math.sqrt(uids.reduce((sum, uid) => sum + of(uid), 0) / total) : 0;
    }

    // --- pointer and keys

    boxAt(event) {
      const frame = this.canvas.getBoundingClientRect();
      const x = this.transform.invertX(event.clientX - frame.left), y = this.transform.invertY(event.clientY - frame.top);
      let found = null;
      for (const box of this.made?.boxes ?? []) {
        if (x >= box.X && x <= box.X + box.w && y >= box.Y && y <= box.Y + box.h) found = box;
      }
      return found;
    }

    onClick(event) {
      const box = this.boxAt(event);
      this.at = box;
      this.app.select(box ? new Set(box.open && box.uid !== undefined ? [box.uid] : box.uids) : new Set(), "graph");
    }

    onDouble(event) {
      const box = this.boxAt(event);
      if (box) this.toggle(box.kind === "arm" ? box.parent : box);
    }

    onMove(event) {
      const box = event.buttons ? null : this.boxAt(event);
      this.tip.hidden = !box || box.kind === "arm";
      if (this.tip.hidden) return;
      this.tip.textContent = this.describe(box);
      const frame = this.canvas.getBoundingClientRect();
      this.tip.style.left = `${Math.min(event.clientX - frame.left + 12, this.width - 220)}px`;
      this.tip.style.top = `${event.clientY - frame.top + 14}px`;
    }

    describe(box) {
      if (box.record && !box.children.length) return box.record.text;
      if (box.type) return `${box.label}: ${box.type}`;
      return `${box.label}: ${box.uids.length} nodes`;
    }

    onKey(event) {
      const keys = {
        ArrowDown: () => this.step("out"), ArrowUp: () => this.step("in"),
        ArrowRight: () => this.neighbour(1), ArrowLeft: () => this.neighbour(-1),
        Enter: () => this.at && this.toggle(this.at), e: () => this.at && this.toggle(this.at),
        "+": () => this.selection.call(this.zoom.scaleBy, 1.3), "-": () => this.selection.call(this.zoom.scaleBy, 1 / 1.3),
      };
      if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      event.stopPropagation();
      keys[event.key]();
    }

    go(box) {
      if (!box) return;
      this.at = box;
      this.app.select(new Set(box.uids), "graph");
      const t = this.transform;
      const x = t.applyX(box.X + box.w / 2), y = t.applyY(box.Y + box.h / 2);
      if (x < 0 || y < 0 || x > this.width || y > this.height) {
        this.selection.call(this.zoom.translateTo, box.X + box.w / 2, box.Y + box.h / 2);
      }
      this.app.say(this.describe(box));
    }

    current() {
      if (this.at && this.made.boxes.includes(this.at)) return this.at;
      return this.made.boxes.find((box) => !box.open);
    }

    step(which) {
      const now = this.current();
      this.go(this.at === now ? this.edges.get(now)?.[which][0] : now);
    }

    neighbour(by) {
      const boxes = this.made.boxes.filter((box) => !box.open);
      const index = boxes.indexOf(this.current());
      this.go(boxes[(index + by + boxes.length) % boxes.length]);
    }
  }

  function isIn(box, selected) {
    if (box.uids.length > selected.size) {
      for (const uid of selected) if (box.uids.includes(uid)) return true;
      return false;
    }
    return box.uids.some((uid) => selected.has(uid));
  }

  function forwardLine(c, from, to, points) {
    let x = from.X + from.w / 2, y = from.Y + from.h;
    c.moveTo(x, y);
    for (const [px, py] of [...points, [to.X + to.w / 2, to.Y]]) {
      const middle = (y + py) / 2;
      c.bezierCurveTo(x, middle, px, middle, px, py);
      x = px;
      y = py;
    }
    c.lineTo(x - 3, y - 4);
    c.moveTo(x, y);
    c.lineTo(x + 3, y - 4);
  }

  function hash(text) {
    let found = 7;
    for (const sign of text) found = (found * 31 + sign.charCodeAt(0)) >>> 0;
    return found;
  }

  smelt.GraphPane = GraphPane;
})();
