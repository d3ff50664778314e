// Keeps the page as the server would draw it now. The server is the only one that renders: each event brings the content
// anew, and what differs is changed in place, so that focus, selection, scroll positions and ticks in boxes stay.
"use strict";

(() => {
  const live = document.getElementById("live");
  const state = document.getElementById("link-state");

  // Make `old` like `fresh`, node by node; rows with a key keep their element wherever they move.
  function morph(old, fresh) {
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
      old.replaceWith(fresh);
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    }
    for (const { name, value } of [...fresh.attributes]) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    morphChildren(old, fresh);
  }

  function morphChildren(old, fresh) {
    const keyed = new Map();
    for (const child of old.children) {
      if (child.dataset.key !== undefined) keyed.set(child.dataset.key, child);
    }
    let at = old.firstChild;
    for (const wanted of [...fresh.childNodes]) {
      const key = wanted.nodeType === Node.ELEMENT_NODE ? wanted.dataset.key : undefined;
      const known = key === undefined ? undefined : keyed.get(key);
      if (known !== undefined) {
        if (known === at) at = at.nextSibling;
        else old.insertBefore(known, at);
        morph(known, wanted);
      } else if (at !== null && key === undefined && at.dataset?.key === undefined) {
        const next = at.nextSibling;
        morph(at, wanted);
        at = next;
      } else {
        old.insertBefore(wanted, at);
      }
    }
    while (at !== null) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  function say(text, kind) {
    if (state.textContent !== text) state.textContent = text;
    state.dataset.kind = kind;
  }

  let source = null;

  function listen() {
    if (source !== null) return;
    source = new EventSource(location.href);
    source.onopen = () => say("Live", "good");
    source.onerror = () => {
      say("Not connected: figures are old", "bad");
      // After an answer that is no stream a browser doesn't try again by itself.
      if (source.readyState === EventSource.CLOSED) {
        rest();
        setTimeout(listen, 3000);
      }
    };
    source.onmessage = (event) => {
      say("Live", "good");
      const fresh = document.createElement("template");
      fresh.innerHTML = event.data;
      morphChildren(live, fresh.content);
    };
  }

  function rest() {
    if (source !== null) source.close();
    source = null;
  }

  document.addEventListener("change", (event) => {
    const form = event.target.dataset.all;
    if (form === undefined) return;
    for (const box of document.querySelectorAll(`#${form} input[name=id]`)) box.checked = event.target.checked;
  });

  if (live !== null && live.hasAttribute("data-live")) {
    document.addEventListener("visibilitychange", () => (document.hidden ? rest() : listen()));
    window.addEventListener("pagehide", rest);
    window.addEventListener("pageshow", () => (document.hidden ? rest() : listen()));
    if (!document.hidden) listen();
  }
})();
