// The words of the driver's view, in the two languages that the car speaks.
const WORDS = {
  en: {
    drive: "Drive", engineer: "Engineer", conversation: "Conversation", talk: "Hold to talk", cancel: "Cancel", mute: "Mute",
    language: "Language", volume: "Volume",
    idle: "Ready", listening: "Listening", thinking: "Thinking", speaking: "Speaking", degraded: "Limited", gone: "Not connected",
    muted: "Microphone muted", unclear: "(not understood)", away: "no connection; trying again",
    hidden: "(words are not shown to this user: api.words)",
  },
  zh: {
    drive: "驾驶", engineer: "工程", conversation: "对话", talk: "按住说话", cancel: "取消", mute: "静音",
    language: "语言", volume: "音量",
    idle: "就绪", listening: "正在听", thinking: "思考中", speaking: "正在说", degraded: "功能受限", gone: "未连接",
    muted: "麦克风已静音", unclear: "（没有听清）", away: "没有连接，正在重试",
    hidden: "（不向此用户显示内容：api.words）",
  },
};
export const LANGUAGE = navigator.language.startsWith("zh") ? "zh" : "en";
export const word = (name) => WORDS[LANGUAGE][name] ?? name;
export const languageOf = (text) => (/[\u3400-\u9fff]/.test(text) ? "zh" : "en");

export function translate() {
  document.documentElement.lang = LANGUAGE;
  for (const element of document.querySelectorAll("[data-word]")) element.textContent = word(element.dataset.word);
}
