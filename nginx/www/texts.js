// What the page says, in two languages. An element that has been given a text keeps its name, so
// that a change of language reaches it wherever it stands.

const TEXTS = {
  zh: {
    title: "诊疗文书助手",
    subtitle: "Weir 演示",
    language: "English",
    fresh: "新对话",
    notice: "模型生成的内容须经医师核对后方可使用。",
    empty: "选择场景，描述病情，然后发送。",
    emptyHint: "回答会逐字显示，可随时停止。",
    scene: "场景",
    record: "病历生成",
    qa: "问答",
    prompt: "输入内容",
    placeholder: "例如：患者男，45 岁，发热三天，最高 39.2℃，无咳嗽。",
    hint: "Enter 发送 · Shift+Enter 换行 · Esc 停止",
    send: "发送",
    stop: "停止",
    copy: "复制",
    copied: "已复制",
    retry: "重试",
    againIn: "{0} 秒后可重试",
    you: "您",
    assistant: "助手",
    asking: "正在请求…",
    thinking: "思考中…",
    beats: "引擎仍在工作（心跳 {0}）",
    streaming: "正在生成…",
    whole: "回答完整",
    stopped: "已停止，内容不完整",
    incomplete: "回答中断，内容不完整：{0}",
    missing: "〔未完，以下缺失〕",
    refused: "请求未被受理：{0}",
    againNow: "现在可以重试。",
    streams_exhausted: "当前并发已满",
    tokens_exhausted: "显存额度暂时不足",
    tenant_limit: "您的额度已用完",
    queue_full: "排队已满",
    queue_timeout: "排队超时",
    node_memory: "节点内存紧张",
    no_backend: "没有可用的推理引擎",
    draining: "引擎正在维护",
    admission_down: "准入服务暂时不可用",
    request_too_large: "内容过长",
    timeout: "引擎长时间没有响应",
    unreachable: "无法连接服务器",
    killed: "被管理员终止",
    upstream_truncated: "引擎中途断开",
    upstream_error: "引擎出错",
    no_end: "没有收到结束标记",
    length: "达到长度上限",
    content_filter: "内容被过滤",
    damaged: "收到的数据已损坏",
    not_a_stream: "服务器返回的不是流式回答",
    error: "引擎报告了错误",
  },
  en: {
    title: "Clinical writing assistant",
    subtitle: "Weir demo",
    language: "中文",
    fresh: "New chat",
    notice: "Generated text must be checked by a physician before it is used.",
    empty: "Pick a scene, describe the case, and send.",
    emptyHint: "The answer appears as it is written. You can stop it at any time.",
    scene: "Scene",
    record: "Medical record",
    qa: "Question",
    prompt: "Your text",
    placeholder: "For example: male, 45, fever for three days, up to 39.2 °C, no cough.",
    hint: "Enter sends · Shift+Enter new line · Esc stops",
    send: "Send",
    stop: "Stop",
    copy: "Copy",
    copied: "Copied",
    retry: "Try again",
    againIn: "Try again in {0} s",
    you: "You",
    assistant: "Assistant",
    asking: "Asking…",
    thinking: "Thinking…",
    beats: "The engine is still at work (heartbeat {0})",
    streaming: "Writing…",
    whole: "Complete",
    stopped: "Stopped: incomplete",
    incomplete: "Broken off, incomplete: {0}",
    missing: "[incomplete: the rest is missing]",
    refused: "Not accepted: {0}",
    againNow: "You can try again now.",
    streams_exhausted: "all streams are in use",
    tokens_exhausted: "the GPU's memory is in use",
    tenant_limit: "your share is used up",
    queue_full: "the queue is full",
    queue_timeout: "the wait in the queue was too long",
    node_memory: "the node is short of memory",
    no_backend: "no engine can be reached",
    draining: "the engines are under maintenance",
    admission_down: "the admission service is away",
    request_too_large: "the text is too long",
    timeout: "the engine was silent for too long",
    unreachable: "the server cannot be reached",
    killed: "ended by an operator",
    upstream_truncated: "the engine broke off",
    upstream_error: "the engine failed",
    no_end: "no end was received",
    length: "a length limit was reached",
    content_filter: "content was filtered",
    damaged: "what was received is damaged",
    not_a_stream: "the server's answer is not a stream",
    error: "the engine reported an error",
  },
};

const STORED = "weir.language";
const said = new WeakMap(); // element -> what its text is filled in with

let language = "zh";

export function known(name) {
  return Object.hasOwn(TEXTS[language], name);
}

// A text by its name; a name that is none (an engine's own code) stands for itself.
export function text(name, ...values) {
  const found = known(name) ? TEXTS[language][name] : name;
  return found.replace(/\{(\d)\}/g, (_, index) => text(String(values[index])));
}

// Gives an element a text by name.
export function say(element, name, ...values) {
  element.dataset.text = name;
  said.set(element, values);
  element.textContent = text(name, ...values);
}

// Changes the language of all that has a text by name.
export function speak(wanted, root = document) {
  language = Object.hasOwn(TEXTS, wanted) ? wanted : "zh";
  root.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  root.title = `${text("title")} · ${text("subtitle")}`;
  for (const element of root.querySelectorAll("[data-text]")) {
    element.textContent = text(element.dataset.text, ...(said.get(element) ?? []));
  }
  for (const element of root.querySelectorAll("[data-placeholder]")) {
    element.placeholder = text(element.dataset.placeholder);
  }
  try {
    localStorage.setItem(STORED, language);
  } catch {
    // A browser that stores nothing asks again next time.
  }
}

export function otherLanguage() {
  return language === "zh" ? "en" : "zh";
}

export function storedLanguage() {
  try {
    return localStorage.getItem(STORED) ?? "zh";
  } catch {
    return "zh";
  }
}
