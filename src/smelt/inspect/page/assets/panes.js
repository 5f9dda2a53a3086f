// The panes of text: source lines, what is selected, steps of the plan with their kernels.
"use strict";
(() => {
  const smelt = window.smelt;
  const { el, size, time } = smelt;

  class SourcePane {
    constructor(app) {
      this.app = app;
      this.root = document.querySelector("#source .scroll");
    }

    show(plan) {
      this.rows = new Map();
      const { page } = this.app;
      const heat = new Map();
      let most = 0;
      for (const [key, uids] of plan.lines) {
        let sum = 0;
        for (const uid of uids) sum += plan.time(uid);
        heat.set(key, sum);
        most = Math.max(most, sum);
      }
      const marks = this.marks();
      this.root.replaceChildren();
      const order = page.sources.map((_, index) => index).sort((a, b) => page.sources[b].own - page.sources[a].own);
      for (const index of order) this.root.append(this.file(index, plan, heat, most, marks));
      if (!page.sources.length) this.root.append(el("p", { class: "none" }, "No source: no file of the program could be read."));
    }

    file(index, plan, heat, most, marks) {
      const source = this.app.page.sources[index];
      const list = el("ol", { class: "lines" });
      let before = 0;
      for (const [number, text] of source.lines) {
        const key = `${index}:${number}`;
        const uids = plan.lines.get(key);
        const found = marks.get(key) ?? [];
        const share = most ? (heat.get(key) ?? 0) / most : 0;
        const parts = [
          el("span", { class: "no" }, String(number)),
          el("span", { class: "heat", style: `--share:${share.toFixed(3)}`, title: share ? time(heat.get(key)) : undefined }),
          el("span", { class: "mark", title: found.join("\n") || undefined }, found.length ? "●" : ""),
          el("code", {}, text || " "),
        ];
        const row = uids || found.length
          ? el("button", { type: "button", class: "line has", onclick: () => this.app.selectLine(index, number) }, parts)
          : el("div", { class: "line" }, parts);
        list.append(el("li", { class: before && number !== before + 1 ? "gap" : undefined }, row));
        this.rows.set(key, row);
        before = number;
      }
      return el("details", { open: source.own || undefined }, el("summary", {}, source.file), list);
    }

    // What the margin says of a line: guards, breaks and fallbacks.
    marks() {
      const found = new Map();
      const note = (at, text) => {
        if (!at) return;
        const key = `${at[0]}:${at[1]}`;
        if (found.has(key)) found.get(key).push(text);
        else found.set(key, [text]);
      };
      for (const guard of this.app.page.guards) if (!guard.usual) note(guard.at, `guard: ${guard.text} (${guard.value})`);
      for (const remark of this.app.page.remarks) note(remark.at, `${remark.kind}: ${remark.text}`);
      return found;
    }

    light(places, scroll) {
      for (const row of this.root.querySelectorAll(".lit")) row.classList.remove("lit");
      let first = null;
      for (const key of places.keys()) {
        const row = this.rows.get(key);
        if (!row) continue;
        row.classList.add("lit");
        if (!first || (this.app.page.sources[places.get(key)[0]].own && !first.own)) {
          first = { row, own: this.app.page.sources[places.get(key)[0]].own };
        }
      }
      if (first && scroll) {
        first.row.closest("details").open = true;
        scrollInto(this.root, first.row);
      }
    }
  }

  class DetailsPane {
    constructor(app) {
      this.app = app;
      this.root = document.getElementById("node");
      this.form = "loops";
    }

    show(plan, stage, uids, line) {
      this.root.replaceChildren();
      const view = plan.at(stage);
      const records = [...uids].map((uid) => view.byUid.get(uid)).filter(Boolean);
      if (!uids.size) {
        const what = line ? "Nothing of the graph comes from this line." : "Select a line, a node, a kernel, a buffer or a guard: its like lights up everywhere.";
        this.root.append(el("p", { class: "none" }, what));
        return;
      }
      if (!records.length) {
        this.root.append(el("p", { class: "none" }, "No such node stands in the graph at this stage."));
        for (const uid of [...uids].slice(0, 8)) this.root.append(el("code", { class: "text" }, plan.record(uid, stage)?.text ?? ""));
        return;
      }
      if (records.length === 1) this.one(plan, records[0]);
      else this.many(plan, records);
      this.decisions(plan, records);
      this.kernel(plan, uids);
    }

    one(plan, record) {
      this.root.append(el("code", { class: "text" }, record.text));
      const how = plan.how(record.uid);
      const rows = [
        ["runs as", how ? `${how.how}${how.target && how.how !== "kernel" ? `: ${how.target}` : ""}` : "it is no node of what was lowered"],
        ["module", record.scope], ["mode", record.mode], ["part of the step", plan.phase(record.uid)],
        ["bytes", record.nbytes ? size(record.nbytes) : ""], ["operations", record.flops ? record.flops.toLocaleString("en") : ""],
        ["time", plan.time(record.uid) ? `${time(plan.time(record.uid))}, its part of the step` : ""],
      ].filter(([, value]) => value);
      this.root.append(el("dl", { class: "facts" }, rows.flatMap(([key, value]) => [el("dt", {}, key), el("dd", {}, value)])));
      if (record.at.length) {
        this.root.append(el("ul", { class: "places" }, record.at.map((at, depth) => el("li", {},
          el("button", { type: "button", class: "link", onclick: () => this.app.selectLine(...at) },
            `${depth ? "called at " : ""}${this.app.page.sources[at[0]].file}:${at[1]}`)))));
      }
    }

    many(plan, records) {
      const bytes = records.reduce((sum, record) => sum + record.nbytes, 0);
      const flops = records.reduce((sum, record) => sum + record.flops, 0);
      const spent = records.reduce((sum, record) => sum + plan.time(record.uid), 0);
      this.root.append(el("p", {}, `${records.length} nodes, ${size(bytes)}, ${flops.toLocaleString("en")} operations${spent ? `, ${time(spent)}` : ""}`));
      this.root.append(el("ul", { class: "list" }, records.slice(0, 60).map((record) => el("li", {},
        el("button", { type: "button", class: "link text", onclick: () => this.app.select(new Set([record.uid]), "details") }, record.text)))));
      if (records.length > 60) this.root.append(el("p", { class: "none" }, `and ${records.length - 60} more`));
    }

    decisions(plan, records) {
      const names = new Set();
      for (const uid of plan.related(records.map((record) => record.uid))) {
        for (const name of plan.last?.byUid.get(uid)?.names ?? []) names.add(name);
      }
      const found = plan.code.decisions.filter((decision) => decision.nodes.some((name) => names.has(name))).slice(0, 12);
      if (!found.length) return;
      this.root.append(el("h3", {}, "Fused, and not fused"));
      this.root.append(el("ul", { class: "list" }, found.map((decision) => el("li", {}, smelt.decision(this.app, plan, decision)))));
    }

    kernel(plan, uids) {
      const step = plan.steps(plan.related(uids)).find((index) => plan.code.steps[index].kernel >= 0);
      if (step === undefined) return;
      const kernel = plan.code.kernels[plan.code.steps[step].kernel];
      const forms = [["loops", kernel.loops], ["LLVM", kernel.llvm], ["assembly", kernel.assembly]].filter(([, text]) => text);
      if (!forms.length) return;
      const text = el("pre", { class: "code", tabindex: 0 });
      const choose = (name) => {
        this.form = name;
        const [form, shown] = forms.find(([key]) => key === name) ?? forms[0];
        text.textContent = shown;
        for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.form === form));
      };
      const buttons = forms.map(([name]) => el("button", { type: "button", "data-form": name, onclick: () => choose(name) }, name));
      this.root.append(el("h3", {}, `Kernel ${kernel.symbol.replace("smelt_", "").slice(0, 8)}`), el("div", { class: "forms" }, buttons), text);
      choose(this.form);
    }
  }

  // Why nodes were fused or not, with their bytes apart and as one; a click selects them.
  smelt.decision = (app, plan, decision) => {
    const uids = decision.nodes.map((name) => plan.last?.byName.get(name)).filter((uid) => uid !== undefined);
    const bytes = decision.apart || decision.one ? ` (${size(decision.apart)} apart, ${size(decision.one)} as one)` : "";
    const names = decision.nodes.map((name) => {
      const record = plan.last?.byUid.get(plan.last.byName.get(name));
      return record ? `%${name} ${smelt.short(record.op)}` : `%${name}`;
    });
    return el("button", { type: "button", class: `link decision ${decision.fused ? "yes" : "no"}`, onclick: () => app.select(new Set(uids), "fusion") },
      el("b", {}, decision.fused ? "fused" : "not fused"), ` ${names.join(" + ")}: ${decision.why}${bytes}`);
  };

  class StepsPane {
    constructor(app) {
      this.app = app;
      this.root = document.getElementById("steps");
    }

    show(plan) {
      const { code } = plan;
      const most = Math.max(0, ...code.steps.map((step) => step.us ?? 0));
      const style = this.app.colours();
      this.rows = [];
      const list = el("ol", { class: "steps" });
      code.steps.forEach((step, index) => {
        // What does nothing but keep books is left out.
        if (step.kind === "memory" || step.kind === "block" || step.what === "View") {
          this.rows.push(null);
          return;
        }
        const rates = step.us ? [step.nbytes ? `${(step.nbytes / step.us / 1e3).toFixed(1)} GB/s` : "", step.flops ? `${(step.flops / step.us / 1e3).toFixed(1)} GFLOP/s` : ""].filter(Boolean).join(", ") : "";
        const tint = step.kernel >= 0 ? style.palette[index % style.palette.length] : style.how[step.kind] ?? style.box;
        const row = el("button", { type: "button", class: "step", onclick: () => this.app.selectStep(index) },
          el("span", { class: "chip", style: `background:${tint}` }),
          el("span", { class: "what" }, step.what || step.kind),
          el("span", { class: "us" }, step.us !== null && step.us !== undefined ? time(step.us) : ""),
          el("span", { class: "bar", style: `--share:${most ? ((step.us ?? 0) / most).toFixed(3) : 0}` }),
          el("span", { class: "rates" }, `${step.kind}${step.nodes.length ? `, %${step.nodes.join(", %")}` : ""}${rates ? `; ${rates}` : ""}`));
        this.rows.push(row);
        list.append(el("li", {}, row));
      });
      this.root.replaceChildren(list);
      if (!code.steps.length) this.root.replaceChildren(el("p", { class: "none" }, code.missing.join("; ") || "No plan."));
    }

    light(steps, scroll) {
      for (const row of this.root.querySelectorAll(".lit")) row.classList.remove("lit");
      let first = null;
      for (const index of steps) {
        const row = this.rows[index];
        if (!row) continue;
        row.classList.add("lit");
        first ??= row;
      }
      if (first && scroll) scrollInto(this.root, first);
    }
  }

  function scrollInto(frame, row) {
    const a = frame.getBoundingClientRect(), b = row.getBoundingClientRect();
    if (b.top < a.top || b.bottom > a.bottom) frame.scrollTop += b.top - a.top - a.height / 3;
  }

  Object.assign(smelt, { SourcePane, DetailsPane, StepsPane });
})();
