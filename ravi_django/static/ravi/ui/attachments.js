// Files in messages: attach, paste or drop them in the composer.

import { button, element } from "./element.js";
import { fileOf } from "./transcript.js";
import { t } from "./words.js";

export class Attachments {
  // Uploads at once; calls `on.files()` after each change and `on.fault(message)`.
  constructor(root, api, on) {
    this.api = api;
    this.on = on;
    this.list = root.getElementById("attached");
    this.items = []; // { chip, block }; the block is there after the upload
    const input = root.getElementById("files");
    root.getElementById("attach").onclick = () => input.click();
    input.onchange = () => {
      this.#add(input.files);
      input.value = "";
    };
    const take = (event) => {
      const data = event.dataTransfer ?? event.clipboardData;
      if (!data.types.includes("Files")) return;
      if (event.type === "paste" && data.types.includes("text/plain")) return; // cells or words, with their picture
      event.preventDefault(); // else the browser opens the file
      if (event.type !== "dragover") this.#add(data.files);
    };
    for (const type of ["dragover", "drop", "paste"]) root.querySelector(".stage").addEventListener(type, take);
  }

  get uploading() {
    return this.items.some((item) => !item.block);
  }

  get blocks() {
    return this.items.map((item) => item.block);
  }

  // The server has these blocks; without an argument, remove all.
  drop(sent) {
    this.#keep(sent ? this.items.filter((item) => !sent.includes(item.block)) : []);
  }

  #keep(items) {
    this.items = items;
    this.list.replaceChildren(...items.map((item) => item.chip));
    this.on.files();
  }

  #add(files) {
    for (const file of files) this.#upload(file);
  }

  async #upload(file) {
    const item = { chip: element("li", "chip", t("Uploading %s", file.name)) };
    this.#keep([...this.items, item]);
    const gone = () => this.#keep(this.items.filter((other) => other !== item));
    try {
      item.block = await this.api.upload(file);
      const remove = button("✕", () => {
        gone();
        this.api.delete(`files/${item.block.file}/`).catch(() => {}); // else it is deleted after a day
      });
      remove.setAttribute("aria-label", t("Remove %s", item.block.name));
      item.chip.replaceChildren(fileOf(this.api, item.block), remove);
      this.on.files();
    } catch (error) {
      gone();
      this.on.fault(t("%s is not attached: %s", file.name, error.message));
    }
  }
}
