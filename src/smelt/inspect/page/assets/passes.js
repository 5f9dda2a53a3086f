// The tab of passes: a slider over the stages, and what each changed, node by node.
"use strict";
(() => {
  const smelt = window.smelt;
  const { el } = smelt;
  const MOST = 400; // rows that are shown at once

  // What changed from one stage to the next: rows {kind, text, uid, why}, in the order of the later one.
  function difference(plan, number) {
    const { stages, nodes } = plan.code;
    const before = stages[number - 1].records, after = stages[number].records;
    const was = new Map(before.map((index) => [nodes[index].uid, index]));
    const is = new Map(after.map((index) => [nodes[index].uid, index]));
    const moved = outOfOrder(before.map((i) => nodes[i].uid).filter((uid) => is.has(uid)), after.map((i) => nodes[i].uid).filter((uid) => was.has(uid)));
    const { led } = stages[number];
    const later = plan.at(number);
    const rows = [];
    const gone = (index) => {
      const record = nodes[index];
      const to = (led[record.uid] ?? []).map((uid) => later.byUid.get(uid)).filter(Boolean);
      const why = to.length ? `now ${to.map((one) => `%${one.names[0] ?? one.op}`).join(", ")}` : "nothing uses it";
      rows.push({ kind: "removed", text: record.text, uid: record.uid, why });
    };
    let at = 0;
    for (const index of after) {
      const record = nodes[index];
      while (at < before.length && before[at] !== index && !is.has(nodes[before[at]].uid)) gone(before[at++]);
      if (was.has(record.uid)) {
        const old = was.get(record.uid);
        if (old !== index) {
          rows.push({ kind: "before", text: nodes[old].text, uid: record.uid, why: "" });
          rows.push({ kind: "changed", text: record.text, uid: record.uid, why: nodes[old].text === record.text ? "another place, module or region" : "" });
        } else rows.push({ kind: moved.has(record.uid) ? "moved" : "same", text: record.text, uid: record.uid, why: "" });
        if (before[at] === old) at += 1;
      } else rows.push({ kind: "added", text: record.text, uid: record.uid, why: "" });
    }
    for (; at < before.length; at += 1) if (!is.has(nodes[before[at]].uid)) gone(before[at]);
    const told = new Set(rows.filter((row) => row.kind === "removed").map((row) => row.uid));
    for (const index of before) if (!is.has(nodes[index].uid) && !told.has(nodes[index].uid)) gone(index);
    return rows;
  }

  // Of two orders of the same things those that are not in a longest common one.
  function outOfOrder(before, after) {
    const place = new Map(before.map((uid, index) => [uid, index]));
    const numbers = after.map((uid) => place.get(uid));
    const ends = [], from = new Array(numbers.length), at = [];
    numbers.forEach((number, index) => {
      let low = 0, high = ends.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (ends[middle] < number) low = middle + 1;
        else high = middle;
      }
      ends[low] = number;
      at[low] = index;
      from[index] = low ? at[low - 1] : -1;
    });
    const kept = new Set();
    for (let index = ends.length ? at[ends.length - 1] : -1; index >= 0; index = from[index]) kept.add(after[index]);
    return new Set(after.filter((uid) => !kept.has(uid)));
  }

  smelt.passes = (app, root) => {
    const { plan, state } = app;
    const { stages } = plan.code;
    if (!stages.length) {
      root.append(el("p", { class: "none" }, "No graph."));
      return () => {};
    }
    const slider = el("input", { id: "slider", type: "range", min: 0, max: stages.length - 1, step: 1, value: state.stage, "aria-label": "Stage: the graph after so many passes that changed it",
      oninput: () => app.setStage(Number(slider.value)) });
    const title = el("div", { class: "stage", "aria-live": "polite" });
    const whole = el("input", { type: "checkbox", id: "whole", onchange: () => update() });
    const list = el("ol", { class: "diff", id: "diff" });
    root.append(el("div", { class: "slider" }, el("span", {}, stages[0].name), slider, el("span", {}, stages.at(-1).name),
      el("label", {}, whole, " whole graph")), title, list);
    if (stages.length === 1) title.append(el("p", { class: "none" }, "No pass changed this graph."));
    let rows = [];
    const update = () => {
      const stage = stages[state.stage];
      slider.value = state.stage;
      slider.setAttribute("aria-valuetext", stage.name);
      const before = state.stage ? stages[state.stage - 1].records.length : stage.records.length;
      const edits = Object.entries(stage.edits).map(([kind, count]) => `${count} × ${kind}`).join(", ");
      title.replaceChildren(el("p", {}, el("b", {}, stage.name),
        state.stage ? ` — ${before} to ${stage.records.length} nodes, ${stage.ms.toFixed(2)} ms${edits ? `; edits: ${edits}` : ""}` : ` — ${stage.records.length} nodes, as the program called them`,
        stage.peak ? `; peak of memory ${smelt.size(stage.peak[0])} to ${smelt.size(stage.peak[1])}` : ""));
      if (stage.picture) title.append(el("pre", { class: "picture" }, stage.picture));
      rows = state.stage ? difference(plan, state.stage) : plan.at(0).records.map((record) => ({ kind: "same", text: record.text, uid: record.uid, why: "" }));
      const shown = whole.checked || !state.stage ? rows : rows.filter((row) => row.kind !== "same");
      list.replaceChildren(...shown.slice(0, MOST).map((row) => el("li", { class: row.kind, "data-uid": row.uid },
        el("button", { type: "button", class: "link", onclick: () => app.select(new Set([row.uid]), "passes") },
          el("span", { class: "sign", "aria-label": row.kind }, { removed: "−", added: "+", changed: "~", before: "−", moved: "↕", same: " " }[row.kind]),
          el("code", {}, row.text), row.why ? el("i", {}, row.why) : ""))));
      if (shown.length > MOST) list.append(el("li", { class: "none" }, `and ${shown.length - MOST} more`));
      light();
    };
    const light = () => {
      for (const row of list.children) row.classList.toggle("lit", app.state.uids.has(Number(row.dataset.uid)));
    };
    update();
    return { light, stage: update };
  };

  smelt.difference = difference;
})();
