// The other tabs: memory over time, roofline, fusion, guards, recompiles, compile time, what is saved, the report's text.
"use strict";
(() => {
  const smelt = window.smelt;
  const { el, svg, size, time } = smelt;

  function table(heads, rows, label) {
    return el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": label }, el("table", {},
      el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", { class: typeof cell === "number" ? "n" : undefined }, cell instanceof Node ? cell : String(cell ?? ""))))))));
  }

  function link(text, onclick) {
    return el("button", { type: "button", class: "link", onclick }, text);
  }

  function place(app, at) {
    return at ? link(`${app.page.sources[at[0]].file}:${at[1]}`, () => app.selectLine(...at)) : "";
  }

  function memory(app, root) {
    const { plan } = app;
    const { buffers, arena, steps } = plan.code;
    const sums = Object.entries(plan.code.memory).filter(([, bytes]) => bytes).map(([what, bytes]) => `${what.replace("_nbytes", "").replaceAll("_", " ")} ${size(bytes)}`);
    if (sums.length) root.append(el("p", {}, sums.join(", ")));
    if (!buffers.length) {
      root.append(el("p", { class: "none" }, plan.code.missing[0] ?? "A call needs no memory of its own."));
      return {};
    }
    const own = buffers.filter((buffer) => buffer.offset < 0);
    const high = arena + own.reduce((sum, buffer) => sum + buffer.nbytes, 0);
    const W = 1000, H = 220, count = Math.max(1, steps.length + 1);
    const x = (step) => (W * step) / count, y = (bytes) => H - (H * bytes) / Math.max(1, high);
    const live = new Array(count).fill(0);
    for (const buffer of buffers) for (let step = buffer.first; step <= Math.min(buffer.last, count - 1); step += 1) live[step] += buffer.nbytes;
    const peak = live.indexOf(Math.max(...live));
    const marks = [];
    let top = arena;
    buffers.forEach((buffer) => {
      const base = buffer.offset >= 0 ? buffer.offset : (top += buffer.nbytes) - buffer.nbytes;
      const made = svg("rect", { x: x(buffer.first), y: y(base + buffer.nbytes), width: Math.max(1.5, x(buffer.last + 1) - x(buffer.first)),
        height: Math.max(1, y(base) - y(base + buffer.nbytes)), class: buffer.offset >= 0 ? "buffer" : "buffer own", "data-slot": buffer.slot,
        onclick: () => app.selectBuffer(buffer) }, svg("title", {}, `${buffer.what}: ${size(buffer.nbytes)}, steps ${buffer.first} to ${buffer.last}`));
      marks.push([buffer, made]);
    });
    const line = live.map((bytes, step) => `${step ? "L" : "M"}${x(step)},${y(bytes)}H${x(step + 1)}`).join("");
    root.append(el("figure", {}, svg("svg", { viewBox: `-4 -14 ${W + 8} ${H + 30}`, class: "chart", role: "img",
      "aria-label": `Memory over the ${steps.length} steps of a call; the peak is ${size(live[peak])} at step ${peak}` },
    ...marks.map(([, made]) => made), svg("path", { d: line, class: "live" }),
    svg("line", { x1: x(peak), x2: x(peak), y1: -10, y2: H, class: "peak" }),
    svg("text", { x: Math.min(x(peak) + 5, W - 150), y: -2 }, `peak ${size(live[peak])} at step ${peak}`),
    svg("text", { x: 0, y: H + 13 }, "step 0"), svg("text", { x: W - 60, y: H + 13 }, `step ${count - 1}`)),
    el("figcaption", {}, "Each box is a buffer: its place in memory upwards, its life from left to right. The line is what is alive. Darker boxes are results, which have memory of their own.")));
    root.append(el("details", {}, el("summary", {}, `${buffers.length} buffers as a table`),
      table(["buffer", "bytes", "offset", "first step", "last step"], buffers.map((buffer) => [link(buffer.what || `slot ${buffer.slot}`, () => app.selectBuffer(buffer)),
        size(buffer.nbytes), buffer.offset < 0 ? "own" : buffer.offset, buffer.first, buffer.last]), "Buffers")));
    const light = () => {
      const lit = new Set(app.state.steps);
      for (const [buffer, made] of marks) {
        made.classList.toggle("lit", [...lit].some((step) => steps[step].writes.includes(buffer.slot)));
      }
    };
    light();
    return { light };
  }

  function roofline(app, root) {
    const { plan, page } = app;
    const points = plan.code.steps.map((step, index) => ({ step, index })).filter(({ step }) => step.us && step.kernel >= 0 && step.flops && step.nbytes);
    if (!points.length) {
      root.append(el("p", { class: "none" }, page.missing.find((text) => text.startsWith("times")) ?? "No kernel with floating-point operations was measured."));
      return {};
    }
    const W = 700, H = 300, log = Math.log10;
    const rows = points.map((point) => ({ ...point, x: point.step.flops / point.step.nbytes, y: point.step.flops / point.step.us / 1e3 }));
    const { roof } = page;
    const left = log(Math.min(0.05, ...rows.map((row) => row.x))) - 0.2, right = log(Math.max(100, ...rows.map((row) => row.x))) + 0.2;
    const top = log(Math.max(roof?.gflops ?? 1, ...rows.map((row) => row.y))) + 0.3, low = log(Math.min(...rows.map((row) => row.y))) - 0.3;
    const X = (value) => (W * (log(value) - left)) / (right - left), Y = (value) => H - (H * (log(value) - low)) / (top - low);
    const parts = [];
    for (let power = Math.ceil(left); power <= right; power += 1) parts.push(svg("line", { x1: X(10 ** power), x2: X(10 ** power), y1: 0, y2: H, class: "grid" }), svg("text", { x: X(10 ** power) + 2, y: H + 13 }, `${10 ** power}`));
    for (let power = Math.ceil(low); power <= top; power += 1) parts.push(svg("line", { x1: 0, x2: W, y1: Y(10 ** power), y2: Y(10 ** power), class: "grid" }), svg("text", { x: 2, y: Y(10 ** power) - 2 }, `${10 ** power}`));
    if (roof) {
      const ridge = roof.gflops / roof.gbps;
      parts.push(svg("path", { class: "live", d: `M${X(10 ** left)},${Y(10 ** left * roof.gbps)}L${X(ridge)},${Y(roof.gflops)}H${W}` }));
    }
    const marks = rows.map((row) => {
      const made = svg("circle", { cx: X(row.x), cy: Y(row.y), r: 4 + 8 * Math.sqrt(row.step.us / plan.total), class: "point", onclick: () => app.selectStep(row.index) },
        svg("title", {}, `${row.step.what}: ${row.y.toFixed(1)} GFLOP/s, ${row.x.toFixed(2)} operations a byte, ${time(row.step.us)}`));
      return [row.index, made];
    });
    const told = roof ? `Ceilings measured here with ${roof.threads} thread${roof.threads === 1 ? "" : "s"}: ${roof.gflops} GFLOP/s of multiply-adds, ${roof.gbps} GB/s of copying from memory. What lies in a cache may be above the slope.` : "The machine's ceilings were not measured: smelt explain --html does.";
    root.append(el("figure", {}, svg("svg", { viewBox: `-4 -6 ${W + 12} ${H + 24}`, class: "chart narrow", role: "img", "aria-label": "Roofline: operations per byte against GFLOP/s of each kernel" }, ...parts, ...marks.map(([, made]) => made)),
      el("figcaption", {}, `Operations a byte of memory to the right, GFLOP/s upwards, both logarithmic; the size is the time. ${told}`)));
    root.append(el("details", {}, el("summary", {}, `${rows.length} kernels as a table`), table(["kernel", "time", "operations a byte", "GFLOP/s", "GB/s"],
      rows.map((row) => [link(row.step.what, () => app.selectStep(row.index)), time(row.step.us), row.x.toFixed(2), row.y.toFixed(1), (row.step.nbytes / row.step.us / 1e3).toFixed(1)]), "Kernels")));
    const light = () => {
      for (const [index, made] of marks) made.classList.toggle("lit", app.state.steps.includes(index));
    };
    light();
    return { light };
  }

  function fusion(app, root) {
    const { plan } = app;
    const found = [...plan.code.decisions].sort((a, b) => a.fused - b.fused || b.apart - b.one - (a.apart - a.one));
    const fused = found.filter((decision) => decision.fused).length;
    root.append(el("p", {}, `${fused} fused, ${found.length - fused} not fused.`));
    root.append(el("ul", { class: "list" }, found.slice(0, 300).map((decision) => el("li", {}, smelt.decision(app, plan, decision)))));
    if (plan.code.choices.length) {
      root.append(el("h3", {}, "Choices between implementations"), table(["shape", "nodes", "chosen", "why", "measured"], plan.code.choices.map((choice) => [choice.shape, choice.nodes, choice.chosen, choice.why,
        Object.entries(choice.us).filter(([, us]) => us !== null).map(([name, us]) => `${name} ${time(us)}`).join(", ")]), "Choices"));
    }
    return {};
  }

  function guards(app, root) {
    const { page } = app;
    const rows = (wanted) => page.guards.filter((guard) => guard.usual === wanted).map((guard) => [guard.entry, guard.kind, guard.text, guard.value, place(app, guard.at)]);
    const heads = ["entry", "kind", "guard", "value", "read at"];
    const telling = rows(false);
    if (telling.length) root.append(table(heads, telling, "Guards"));
    else root.append(el("p", { class: "none" }, "None but the usual ones."));
    if (page.usual) {
      const more = el("details", { ontoggle: () => {
        if (more.open && more.children.length === 1) more.append(table(heads, rows(true), "Usual guards"));
      } }, el("summary", {}, page.usual));
      root.append(more);
    }
    return {};
  }

  function recompiles(app, root) {
    const { page } = app;
    if (page.recompiles.length) {
      root.append(el("ol", { class: "times" }, page.recompiles.map((one) => el("li", {}, el("b", {}, one.what), one.old || one.new ? [" ", el("del", {}, one.old), " → ", el("ins", {}, one.new)] : "", ` ${one.times} time${one.times === 1 ? "" : "s"}`))));
    } else root.append(el("p", { class: "none" }, "No call was compiled anew."));
    for (const [kind, title] of [["break", "Breaks"], ["fallback", "Fallbacks"]]) {
      const found = page.remarks.filter((remark) => remark.kind === kind);
      root.append(el("h3", {}, title), found.length ? table(["entry", "why", "times", "at"], found.map((one) => [one.entry < 0 ? "" : one.entry, one.text, one.times ?? "", place(app, one.at)]), title) : el("p", { class: "none" }, "None."));
    }
    return {};
  }

  function compiling(app, root) {
    const rows = app.page.timings;
    const most = Math.max(1e-9, ...rows.map((row) => row.ms));
    if (!rows.length) root.append(el("p", { class: "none" }, "Nothing was compiled."));
    else root.append(table(["entry", "stage", "ms", "", "sizes"], rows.map((row) => [row.entry, row.stage, Number(row.ms.toFixed(2)), el("span", { class: "bar", style: `--share:${(row.ms / most).toFixed(3)}` }), row.sizes]), "Stages of compiling"));
    return {};
  }

  function saved(app, root) {
    const { saved: found } = app.plan.code;
    if (!found.length) {
      const forward = app.page.codes.findIndex((code) => code.saved.length && code.entry === app.plan.code.entry);
      if (forward >= 0) root.append(el("p", {}, link("What the forward half saves", () => app.setCode(forward))));
      else root.append(el("p", { class: "none" }, "Nothing is saved: this plan has no backward half."));
      return {};
    }
    root.append(el("p", {}, `${size(found.reduce((sum, one) => sum + one.nbytes, 0))} are kept from the forward to the backward half, besides inputs.`));
    const last = app.plan.last;
    root.append(table(["value", "type", "bytes", "why"], found.map((one) => {
      const uid = last?.byName.get(one.name.slice(1)) ?? app.plan.at(0).byName.get(one.name.slice(1));
      return [uid === undefined ? one.name : link(one.name, () => app.select(new Set([uid]), "saved")), one.type, one.nbytes ? size(one.nbytes) : "", one.why];
    }), "Saved values"));
    return {};
  }

  function report(app, root) {
    root.append(el("pre", { class: "code report", tabindex: 0 }, app.page.text));
    return {};
  }

  smelt.TABS = [
    ["passes", "Passes", (app, root) => smelt.passes(app, root)], ["memory", "Memory", memory], ["roofline", "Roofline", roofline], ["fusion", "Fusion", fusion],
    ["guards", "Guards", guards], ["recompiles", "Recompiles and breaks", recompiles], ["compiling", "Compile time", compiling], ["saved", "Saved", saved], ["report", "Report", report],
  ];
})();
