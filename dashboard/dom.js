// Helpers for the document. Text of other clients goes into it through text nodes only.
import { visible } from "./state.js";

export const byId = (id) => document.getElementById(id);

export const element = (tag, className, ...content) => {
  const e = document.createElement(tag);
  if (className) e.className = className;
  e.append(...content);
  return e;
};

// theirs returns an element with a text that another client chose. The style sheet cuts a long one; the tooltip has
// all of it.
export const theirs = (tag, className, text) => {
  const e = element(tag, "theirs " + className, visible(text));
  e.title = visible(text);
  return e;
};

// setText changes the text of an element that has no other content, if it differs.
export const setText = (e, text) => {
  if (e.firstChild === null) e.append(text);
  else if (e.firstChild.data !== text) e.firstChild.data = text;
};

export const show = (e, on) => {
  if (e.hidden === on) e.hidden = !on;
};
