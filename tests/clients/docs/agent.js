import { HttpAgent } from "@ag-ui/client";

const csrf = document.cookie.match(/csrftoken=([^;]+)/)?.[1];
export const agent = new HttpAgent({ url: "/ravi/agui/react/assistant/", headers: { "X-CSRFToken": csrf } });
